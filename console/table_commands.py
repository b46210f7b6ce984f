"""``pgsluice tables``: its flags, what it asks before it begins, and its help."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from pgsluice.console.flags import CommandFunction, confirm, load_settings, takes
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.errors import UsageError

_EVERY = "*.*"
_WAIT = "Longest wait for the outcome (default 60)"


def gives_order(function: CommandFunction, *, takes_all: bool = False) -> CommandFunction:
    """Adds the parameters of a command about tables. ``takes_all``: --all can replace names."""
    decorated: Any = function
    decorators: tuple[Callable[[Any], Any], ...] = (
        click.pass_context,
        click.option("--no-wait", is_flag=True, help="Return at once, without the outcome"),
        click.option("--wait", "wait_s", type=click.FloatRange(min=0), default=60.0, metavar="SECONDS", help=_WAIT),
        *([click.option("--all", "every", is_flag=True, help="All tables of the group")] if takes_all else []),
        click.argument("named", nargs=-1, required=not takes_all, metavar="[TABLE]..." if takes_all else "TABLE..."),
        takes(GroupSettings),
    )
    for decorate in decorators:
        decorated = decorate(decorated)
    made: CommandFunction = decorated
    return made


EARLIER_COMMANDS = {"recopy": "resync"}


class _TablesGroup(click.Group):
    """Accepts ``recopy``, the earlier name of ``resync``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, EARLIER_COMMANDS.get(cmd_name, cmd_name))


@click.group(cls=_TablesGroup)
@takes(GroupSettings)
def tables() -> None:
    """List, add, remove and resync the tables of a group while everything runs.

    TABLE is one table (orders, sales.orders) or a pattern in quotes ('sales.*'). Added and removed tables are stored in NATS,
    in addition to the configuration, and survive restarts. If the replicator is not running, it carries the command out at its
    next start.
    """


@tables.command("list", short_help="List tables with phase, rows and errors.")
@takes(GroupSettings)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of a table")
@click.pass_context
def tables_list(context: click.Context, as_json: bool) -> None:
    """List the group's tables: why each is followed, how far its snapshot is, and which commands are pending."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.tables import list_tables

    list_tables(settings, as_json=as_json)


@tables.command("add", short_help="Start to replicate tables, with an initial snapshot.")
@gives_order
@click.option("--without-copy", is_flag=True, help="For a group that only streams; existing rows stay missing at the target")
def tables_add(context: click.Context, named: tuple[str, ...], without_copy: bool, wait_s: float, no_wait: bool) -> None:
    """Start to replicate each TABLE, and copy its existing rows."""
    _order(context, "add", named, wait_s=None if no_wait else wait_s, without_copy=without_copy)


@tables.command("remove", short_help="Stop to replicate tables; targets keep their rows.")
@gives_order
def tables_remove(context: click.Context, named: tuple[str, ...], wait_s: float, no_wait: bool) -> None:
    """Stop to replicate each TABLE, even if the configuration names it. Rows at the targets stay."""
    _order(context, "remove", named, wait_s=None if no_wait else wait_s)


@tables.command("resync", short_help="Copy tables again, into emptied tables.")
@partial(gives_order, takes_all=True)
def tables_resync(context: click.Context, named: tuple[str, ...], every: bool, wait_s: float, no_wait: bool) -> None:
    """Copy each TABLE again from its first row, into emptied tables at the targets."""
    _order(context, "recopy", _named(named, every=every), wait_s=None if no_wait else wait_s)


@tables.command("retry", short_help="Retry the snapshot of tables in an error state.")
@partial(gives_order, takes_all=True)
def tables_retry(context: click.Context, named: tuple[str, ...], every: bool, wait_s: float, no_wait: bool) -> None:
    """Copy each TABLE whose snapshot failed, after you have removed the cause."""
    _order(context, "retry", _named(named, every=every), wait_s=None if no_wait else wait_s)


@tables.command("forget", short_help="Remove tables, and all that the group stores about them.")
@gives_order
@click.option("--yes", is_flag=True, help="Do not ask for confirmation")
def tables_forget(context: click.Context, named: tuple[str, ...], wait_s: float, no_wait: bool, yes: bool) -> None:
    """Stop to replicate each TABLE, and delete its state, after every worker has applied its changes.

    Rows at the targets stay.
    """
    if not yes:
        confirm("forget", "Delete the stored state of these tables?")
    _order(context, "forget", named, wait_s=None if no_wait else wait_s)


def _named(named: tuple[str, ...], *, every: bool) -> tuple[str, ...]:
    if every == bool(named):
        raise UsageError("--all and tables are both given" if every else "no table is named", "name tables, or give --all")
    return (_EVERY,) if every else named


def _order(
    context: click.Context, verb: str, named: tuple[str, ...], *, wait_s: float | None, without_copy: bool = False
) -> None:
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.tables import TableWish, order

    order(settings, TableWish.of(verb, named, without_copy=without_copy, wait_s=wait_s))
