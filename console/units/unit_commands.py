"""``pgsluice pause``, ``resume``, ``stop`` and ``start``: their flags and their help."""

from __future__ import annotations

from typing import Any

import click

from pgsluice.console.flags import CommandFunction, duration, load_settings, takes
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.errors import UsageError

_WAIT = "Wait so long until the units have obeyed; exit with 75 when they have not"


def _orders(function: CommandFunction) -> CommandFunction:
    """The parameters of each of the commands."""
    decorated: Any = function
    for decorate in (
        click.pass_context,
        click.option("--wait", "wait_s", type=duration, metavar="DURATION", help=_WAIT),
        click.option("--reason", default="", metavar="TEXT", help="For whoever looks at the status"),
        click.option("--source", is_flag=True, help="The replicator too"),
        click.option("--worker", "workers", multiple=True, metavar="NAME", help="This worker only; may be repeated"),
        takes(StatusSettings),
    ):
        decorated = decorate(decorated)
    made: CommandFunction = decorated
    return made


_tables = click.option("--table", "tables", multiple=True, metavar="TABLE", help="This table's changes only; may be repeated")


@click.command(short_help="Let workers rest between batches.")
@_tables
@_orders
def pause(context: click.Context, **order: Any) -> int:
    """Let a group's workers rest: each finishes the batch in hand, stores its position and closes its connections to the target.

    The source frees its WAL meanwhile, and changes wait in the stream. With --source the replicator rests too: then the source
    keeps its WAL. What is paused stays so over restarts, until 'pgsluice resume'.

    With --table all workers go on, and hold the changes of that table back: they wait in the stream, and catch up later.
    """
    return _order(context, "pause", **order)


@click.command(short_help="Let go on what is paused.")
@_tables
@_orders
def resume(context: click.Context, **order: Any) -> int:
    """Let go on what is paused: the replicator first, then the workers; with --table the changes of that table."""
    return _order(context, "resume", **order)


@click.command(short_help="End processes, and keep them stopped.")
@_orders
def stop(context: click.Context, **order: Any) -> int:
    """End a group's workers, with --source its replicator too: each process ends with 0 after the batch in hand.

    A supervisor that starts it again sees it end at once, until 'pgsluice start'.
    """
    return _order(context, "stop", **order)


@click.command(short_help="Let processes be started that were stopped.")
@_orders
def start(context: click.Context, **order: Any) -> int:
    """Let a group's processes be started again that 'pgsluice stop' ended. It starts none itself."""
    return _order(context, "start", **order)


def _order(
    context: click.Context,
    verb: str,
    *,
    workers: tuple[str, ...],
    source: bool,
    reason: str,
    wait_s: float | None,
    tables: tuple[str, ...] = (),
) -> int:
    settings = load_settings(context, StatusSettings)
    if tables:
        if workers or source:
            raise UsageError("--table is given with --worker or --source", "a table is paused for all workers: give it alone")
        from pgsluice.console.units.table_pauses import TablePause
        from pgsluice.console.units.table_pauses import run as pause_tables

        return pause_tables(settings, TablePause(tables, verb == "pause", reason, wait_s))
    from pgsluice.console.units.orders import UnitOrder, UnitVerb, run

    return run(settings, UnitOrder(UnitVerb(verb), workers, source, reason, wait_s))
