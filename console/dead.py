"""The command ``dead`` with its subcommands: what becomes of changes that a worker could not apply."""

from __future__ import annotations

import click

from pgsluice.console.command import confirm, load_values, takes
from pgsluice.shared import config
from pgsluice.shared.config.options import Role
from pgsluice.shared.config.settings import GroupSettings

_worker = click.option("--worker", "worker", default="", metavar="NAME", help="Whose letters (default: those of all workers)")
_positions = click.argument("positions", nargs=-1, metavar="[POSITION]...")
_all = click.option("--all", "every", is_flag=True, help="All letters, instead of naming positions")


@click.group()
@takes(Role.DEAD)
def dead() -> None:
    """Show, replay or discard dead letters: changes that a worker could not apply, and later changes of the same rows.

    A letter is named by its position, as 'list' shows it.
    """


@dead.command(name="list", short_help="List dead letters: position, table and reason.")
@takes(Role.DEAD)
@_worker
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each letter instead of a table")
@click.pass_context
def list_letters(context: click.Context, worker: str, as_json: bool) -> None:
    """List dead letters with position, table and reason. No row value is shown."""
    settings = _settings(context)
    from pgsluice.console import letter_list as letter_desk

    letter_desk.list_letters(settings, worker, as_json=as_json)


@dead.command(short_help="Write dead letters as JSON lines, with their row values.")
@takes(Role.DEAD)
@_worker
@_all
@_positions
@click.pass_context
def show(context: click.Context, positions: tuple[str, ...], worker: str, every: bool) -> None:
    """Write the changes in dead letters to standard output, as JSON lines like those of 'worker stdout', row values included."""
    settings = _settings(context)
    from pgsluice.console import letter_list as letter_desk

    letter_desk.show(settings, letter_desk.Selection(worker, positions, every))


@dead.command(short_help="Ask a worker to apply dead letters after all.")
@takes(Role.DEAD)
@_worker
@_all
@_positions
@click.option("--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait for the outcome")
@click.pass_context
def replay(context: click.Context, positions: tuple[str, ...], worker: str, every: bool, wait_s: float) -> None:
    """Ask the worker to apply dead letters after all: now when it runs, else when it starts.

    Earlier letters of the same rows go with them. What is refused again becomes a dead letter again.
    """
    settings = _settings(context)
    from pgsluice.console import letter_list as letter_desk

    letter_desk.replay(settings, letter_desk.Selection(worker, positions, every), wait_s)


@dead.command(short_help="Remove dead letters for good.")
@takes(Role.DEAD)
@_worker
@_all
@_positions
@click.option("--yes", is_flag=True, help="Do not ask before")
@click.pass_context
def discard(context: click.Context, positions: tuple[str, ...], worker: str, every: bool, yes: bool) -> None:
    """Remove dead letters for good: their changes are never applied. Rows without letters are no longer blocked."""
    settings = _settings(context)
    if not yes:
        confirm("discard", "Remove these dead letters for good?")
    from pgsluice.console import letter_list as letter_desk

    letter_desk.discard(settings, letter_desk.Selection(worker, positions, every))


def _settings(context: click.Context) -> GroupSettings:
    return config.group_settings(load_values(context, Role.DEAD))
