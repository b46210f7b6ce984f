"""``pgsluice ddl``: its flags, what it asks before it begins, and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.settings import GroupSettings, SourceTablesSettings


@click.group()
def ddl() -> None:
    """Manage the capture of schema changes (DDL): install it at the source, list the captured changes, and accept them.

    'pgsluice drop' removes a group's capture from the source.
    """


@ddl.command("sql", short_help="Write the SQL that installs the capture.")
@takes(SourceTablesSettings)
@click.option("--no-triggers", is_flag=True, help="Omit the event triggers, if you are not allowed to create them")
@click.option("--remove", is_flag=True, help="Write the SQL that removes the capture instead")
@click.pass_context
def ddl_sql(context: click.Context, no_triggers: bool, remove: bool) -> None:
    """Write the SQL that installs the capture, for an administrator who is allowed to create event triggers.

    Run the SQL in the source database, for example with psql, as often as you like. The command does not connect to the
    source. It reads the replicator's options, so you can use its configuration file.
    """
    settings = load_settings(context, SourceTablesSettings)
    from pgsluice.console.ddl import write_removal, write_sql

    if remove:
        write_removal(settings)
    else:
        write_sql(settings, has_triggers=not no_triggers)


@ddl.command("note", short_help="Capture the current definition of tables, without event triggers.")
@takes(SourceTablesSettings)
@click.argument("named", nargs=-1, required=True, metavar="TABLE...")
@click.pass_context
def ddl_note(context: click.Context, named: tuple[str, ...]) -> None:
    """Capture the current definition of each TABLE, if the source has no event triggers for it.

    In a migration, run this statement in its transaction instead. Then the schema change has its correct position between
    the rows: SELECT pgsluice.note_<group>('schema.table').
    """
    settings = load_settings(context, SourceTablesSettings)
    from pgsluice.console.ddl import note

    note(settings, named)


@ddl.command("log", short_help="List published schema changes, and the action of each worker.")
@takes(GroupSettings)
@click.option("--table", "table", default="", metavar="PATTERN", help="Only these tables: orders, shop.orders, shop.*")
@click.option(
    "--limit",
    "limit",
    type=click.IntRange(min=0),
    default=50,
    metavar="N",
    help="Newest N schema changes; 0 for all that are kept",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each schema change instead of a table")
@click.pass_context
def ddl_log(context: click.Context, table: str, limit: int, as_json: bool) -> None:
    """List the schema changes that the group published, the oldest first: position, commit time, table, change, and the
    action of each worker.

    The newest 500 are kept, independently of streams and slot. Defaults and row values are not shown.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.ddl_log import list_definitions

    list_definitions(settings, table, limit, as_json=as_json)


@ddl.command("accept", short_help="Accept a schema change that stopped a worker.")
@takes(GroupSettings)
@click.argument("named", metavar="POSITION|TABLE")
@click.option("--worker", "worker", default="", metavar="NAME", help="Only for this worker (default: for all workers)")
@click.pass_context
def ddl_accept(context: click.Context, named: str, worker: str) -> None:
    """Accept the schema change at POSITION, after you have adapted the target: a worker that stopped for it continues at its
    next start. Held columns (new-columns: hold) pass from then on.

    With TABLE: accept every schema change of that table that stopped a worker or that a worker holds.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.ddl_log import accept_definitions

    accept_definitions(settings, named, worker)
