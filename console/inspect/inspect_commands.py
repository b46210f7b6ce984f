"""``pgsluice messages`` and ``pgsluice trace``: their flags and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.inspect_settings import TraceSettings
from pgsluice.shared.config.settings import GroupSettings


@click.command()
@takes(GroupSettings)
@click.option("--from", "start", default="", metavar="SEQUENCE|TIME|POSITION", help="Where to begin (default: with the newest)")
@click.option("--table", default="", metavar="TABLE", help="Only changes of such tables: table, schema.table or a pattern")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Most changes to show")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each message, with its changes")
@click.pass_context
def messages(context: click.Context, start: str, table: str, limit: int, as_json: bool) -> None:
    """Show what a group's change stream holds, row values included. Nobody is disturbed, and no position moves.

    TIME is like 2026-01-31T09:15:00+00:00; without a zone it is of this machine. POSITION is a change's, like 16/B374D848:3.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.inspect.shown import show_messages

    show_messages(settings, start, table, limit, as_json=as_json)


@click.command()
@takes(TraceSettings)
@click.argument("table")
@click.argument("key", nargs=-1, required=True, metavar="COLUMN=VALUE...")
@click.option("--messages", "most", type=click.IntRange(1), default=20_000, show_default=True, help="How far to look back")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object")
@click.pass_context
def trace(context: click.Context, table: str, key: tuple[str, ...], most: int, as_json: bool) -> None:
    """Show where a row is: each change of it that the stream holds, and what each worker made of it. Shows row values.

    Exits with 1 when the stream holds no change of it.
    """
    settings = load_settings(context, TraceSettings)
    from pgsluice.console.inspect.shown import show_trace

    context.exit(show_trace(settings, table, key, most, as_json=as_json))
