"""``pgsluice ddl``: its flags, what it asks before it begins, and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.settings import GroupSettings, SourceTablesSettings


@click.group()
def ddl() -> None:
    """Have the source tell, in its write-ahead log, of tables that are altered; show what was told, and decide about it.

    What a group has at the source for that, 'pgsluice drop' removes.
    """


@ddl.command("sql", short_help="Write the SQL that installs it, for an administrator.")
@takes(SourceTablesSettings)
@click.option("--no-triggers", is_flag=True, help="Leave out the event triggers, where nobody may create them")
@click.option("--remove", is_flag=True, help="Write the SQL that removes it instead")
@click.pass_context
def ddl_sql(context: click.Context, no_triggers: bool, remove: bool) -> None:
    """Write the SQL that installs it, for an administrator who may create event triggers.

    To be run in the source database, by psql for one, as often as one likes; nothing is asked of the source now. The
    options are those of the replicator, so its configuration file serves.
    """
    settings = load_settings(context, SourceTablesSettings)
    from pgsluice.console.ddl import write_removal, write_sql

    if remove:
        write_removal(settings)
    else:
        write_sql(settings, has_triggers=not no_triggers)


@ddl.command("note", short_help="Tell now what tables are like, where nothing else would.")
@takes(SourceTablesSettings)
@click.argument("named", nargs=-1, required=True, metavar="TABLE...")
@click.pass_context
def ddl_note(context: click.Context, named: tuple[str, ...]) -> None:
    """Tell now what each TABLE is like, where the source has no event triggers that would.

    A migration says it better itself, in its own transaction, so that it stands in its place between the rows:
    SELECT pgsluice.note_<group>('schema.table').
    """
    settings = load_settings(context, SourceTablesSettings)
    from pgsluice.console.ddl import note

    note(settings, named)


@ddl.command("log", short_help="List the definitions that were published, and what became of them.")
@takes(GroupSettings)
@click.option("--table", "table", default="", metavar="PATTERN", help="Of these tables: orders, shop.orders, shop.*")
@click.option(
    "--limit", "limit", type=click.IntRange(min=0), default=50, metavar="N", help="The newest N; 0 for all that are kept"
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each definition instead of a table")
@click.pass_context
def ddl_log(context: click.Context, table: str, limit: int, as_json: bool) -> None:
    """List the definitions that the group published, the oldest first: position, commit time, table, what changed, and what
    each worker did with it.

    The newest 500 are kept, whatever becomes of streams and slot. No default and no value of a row is shown.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.ddl_log import list_definitions

    list_definitions(settings, table, limit, as_json=as_json)


@ddl.command("accept", short_help="Say that a definition that a worker stopped for is done.")
@takes(GroupSettings)
@click.argument("named", metavar="POSITION|TABLE")
@click.option("--worker", "worker", default="", metavar="NAME", help="For this worker alone (default: for all of them)")
@click.pass_context
def ddl_accept(context: click.Context, named: str, worker: str) -> None:
    """Say that the definition at POSITION is done, after you made the target fit for it: a worker that stopped for it takes
    it so, and goes on when it is started. Columns that are held (new-columns: hold) pass from then on.

    With TABLE: whatever workers stopped for, or hold, of that table.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.ddl_log import accept_definitions

    accept_definitions(settings, named, worker)
