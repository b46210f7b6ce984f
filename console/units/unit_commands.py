"""``pgsluice pause``, ``resume``, ``stop`` and ``start``: their flags and their help."""

from __future__ import annotations

from typing import Any

import click

from pgsluice.console.flags import CommandFunction, duration, load_settings, takes
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.errors import UsageError

_WAIT = "Longest wait until the processes have done this; then exit with 75"


def _orders(function: CommandFunction) -> CommandFunction:
    """Adds the parameters of each of the commands."""
    decorated: Any = function
    for decorate in (
        click.pass_context,
        click.option("--wait", "wait_s", type=duration, metavar="DURATION", help=_WAIT),
        click.option("--reason", default="", metavar="TEXT", help="Reason, which the status shows"),
        click.option("--source", is_flag=True, help="Include the replicator"),
        click.option("--worker", "workers", multiple=True, metavar="NAME", help="Only this worker; repeatable"),
        takes(StatusSettings),
    ):
        decorated = decorate(decorated)
    made: CommandFunction = decorated
    return made


_tables = click.option("--table", "tables", multiple=True, metavar="TABLE", help="Only changes of this table; repeatable")


@click.command(short_help="Pause workers between two batches.")
@_tables
@_orders
def pause(context: click.Context, **order: Any) -> int:
    """Pause a group's workers: each finishes its current batch, stores its position and closes its connections to the target.

    Meanwhile the source frees WAL, and changes wait in the stream. With --source the replicator pauses too: then the source
    retains WAL. A pause survives restarts, and lasts until 'pgsluice resume'.

    With --table all workers continue, but hold the changes of that table back: these wait in the stream until 'pgsluice
    resume'.
    """
    return _order(context, "pause", **order)


@click.command(short_help="Resume paused processes.")
@_tables
@_orders
def resume(context: click.Context, **order: Any) -> int:
    """Resume paused processes: the replicator first, then the workers; with --table the changes of that table."""
    return _order(context, "resume", **order)


@click.command(short_help="Stop processes, and keep them stopped.")
@_orders
def stop(context: click.Context, **order: Any) -> int:
    """Stop a group's workers, with --source also its replicator: each process exits with 0 after its current batch.

    If a supervisor starts a process again, it exits at once, until 'pgsluice start'.
    """
    return _order(context, "stop", **order)


@click.command(short_help="Allow stopped processes to start again.")
@_orders
def start(context: click.Context, **order: Any) -> int:
    """Allow a group's processes that 'pgsluice stop' ended to start again. It does not start them."""
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
