"""``pgsluice messages`` and ``pgsluice trace``: their flags and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.inspect_settings import TraceSettings
from pgsluice.shared.config.settings import GroupSettings


@click.command()
@takes(GroupSettings)
@click.option(
    "--from", "start", default="", metavar="SEQUENCE|TIME|POSITION", help="First message to show (default: the newest messages)"
)
@click.option("--table", default="", metavar="TABLE", help="Only changes of these tables: table, schema.table or a pattern")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Most changes to show")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each message, with its changes")
@click.pass_context
def messages(context: click.Context, start: str, table: str, limit: int, as_json: bool) -> None:
    """Show the changes in a group's stream, including row values. This affects no process and moves no position.

    TIME is like 2026-01-31T09:15:00+00:00; without a time zone, this machine's zone applies. POSITION is a change's position,
    like 16/B374D848:3.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.inspect.shown import show_messages

    show_messages(settings, start, table, limit, as_json=as_json)


@click.command()
@takes(TraceSettings)
@click.argument("table")
@click.argument("key", nargs=-1, required=True, metavar="COLUMN=VALUE...")
@click.option(
    "--messages",
    "most",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="Number of newest stream messages to search",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object")
@click.pass_context
def trace(context: click.Context, table: str, key: tuple[str, ...], most: int, as_json: bool) -> None:
    """Show each change of a row in the stream, and the result in each worker. Shows row values.

    Exits with 1 if the stream contains no change of the row.
    """
    settings = load_settings(context, TraceSettings)
    from pgsluice.console.inspect.shown import show_trace

    context.exit(show_trace(settings, table, key, most, as_json=as_json))
