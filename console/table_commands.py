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
    """The parameters of a command that orders something about tables. ``takes_all``: --all may stand in the place of names."""
    decorated: Any = function
    decorators: tuple[Callable[[Any], Any], ...] = (
        click.pass_context,
        click.option("--no-wait", is_flag=True, help="Give the order and do not wait for it"),
        click.option("--wait", "wait_s", type=click.FloatRange(min=0), default=60.0, metavar="SECONDS", help=_WAIT),
        *([click.option("--all", "every", is_flag=True, help="All tables of the group")] if takes_all else []),
        click.argument("named", nargs=-1, required=not takes_all, metavar="[TABLE]..." if takes_all else "TABLE..."),
        takes(GroupSettings),
    )
    for decorate in decorators:
        decorated = decorate(decorated)
    made: CommandFunction = decorated
    return made


@click.group()
@takes(GroupSettings)
def tables() -> None:
    """Show the tables of a group, or have others: added, removed, copied again, while everything runs.

    TABLE is one table (orders, sales.orders) or a pattern in quotes ('sales.*'). What is added and removed holds over
    restarts, beside the configuration. An order waits for a replicator that does not run.
    """


@tables.command("list", short_help="List tables: phase, rows, what is wrong.")
@takes(GroupSettings)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of a table")
@click.pass_context
def tables_list(context: click.Context, as_json: bool) -> None:
    """List the group's tables, where each comes from, how far its copy is, and which orders are open."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.tables import list_tables

    list_tables(settings, as_json=as_json)


@tables.command("add", short_help="Follow tables from now on, and copy their rows.")
@gives_order
@click.option("--without-copy", is_flag=True, help="Join a group that only streams; rows that are there stay missing")
def tables_add(context: click.Context, named: tuple[str, ...], without_copy: bool, wait_s: float, no_wait: bool) -> None:
    """Follow each TABLE from now on, and copy the rows that it holds."""
    _order(context, "add", named, wait_s=None if no_wait else wait_s, without_copy=without_copy)


@tables.command("remove", short_help="Follow tables no more; targets keep what they hold.")
@gives_order
def tables_remove(context: click.Context, named: tuple[str, ...], wait_s: float, no_wait: bool) -> None:
    """Follow each TABLE no more, although the configuration may name it. What targets hold of it stays."""
    _order(context, "remove", named, wait_s=None if no_wait else wait_s)


@tables.command("recopy", short_help="Copy tables again, into emptied tables.")
@partial(gives_order, takes_all=True)
def tables_recopy(context: click.Context, named: tuple[str, ...], every: bool, wait_s: float, no_wait: bool) -> None:
    """Copy each TABLE again from its first row, into emptied tables at the targets."""
    _order(context, "recopy", _named(named, every=every), wait_s=None if no_wait else wait_s)


@tables.command("retry", short_help="Copy tables that are errored.")
@partial(gives_order, takes_all=True)
def tables_retry(context: click.Context, named: tuple[str, ...], every: bool, wait_s: float, no_wait: bool) -> None:
    """Copy each TABLE that is errored, now that its cause is removed."""
    _order(context, "retry", _named(named, every=every), wait_s=None if no_wait else wait_s)


@tables.command("forget", short_help="Remove tables, and all that is known of them.")
@gives_order
@click.option("--yes", is_flag=True, help="Do not ask before")
def tables_forget(context: click.Context, named: tuple[str, ...], wait_s: float, no_wait: bool, yes: bool) -> None:
    """Follow each TABLE no more, and forget what the group knows of it, once every worker has applied what there is of it.

    What targets hold of it stays.
    """
    if not yes:
        confirm("forget", "Forget what the group knows of these tables?")
    _order(context, "forget", named, wait_s=None if no_wait else wait_s)


def _named(named: tuple[str, ...], *, every: bool) -> tuple[str, ...]:
    if every == bool(named):
        raise UsageError("--all and tables are both given" if every else "no table is named", "name tables, or give --all")
    return (_EVERY,) if every else named


def _order(
    context: click.Context, verb: str, named: tuple[str, ...], *, wait_s: float | None, without_copy: bool = False
) -> None:
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.tables import Wish, order

    order(settings, Wish.of(verb, named, without_copy=without_copy, wait_s=wait_s))
