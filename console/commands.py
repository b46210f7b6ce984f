"""The commands without a separate module here: their flags, their questions before they begin, and their help.

A command's work is in the module of its name, which is imported when the command runs: so ``--help`` loads no library,
and the work can be called without a command line.
"""

from __future__ import annotations

import sys

import click

from pgsluice.console.flags import confirm, duration, load_settings, reloading, takes
from pgsluice.shared.config.settings import (
    DropSettings,
    GroupSettings,
    ReplicatorSettings,
    SourceGroupSettings,
    SourceTablesSettings,
    StatusSettings,
)
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import Table


@click.command()
@takes(ReplicatorSettings)
@click.pass_context
def replicator(context: click.Context) -> None:
    """Publish a database's changes to NATS JetStream, until you stop it or it reaches --until-lsn.

    At a SIGHUP it reads its configuration file again, and follows the tables that the file names now.
    """
    settings = load_settings(context, ReplicatorSettings)
    from pgsluice.replicator.replicator import run

    run(settings, reloading(context, ReplicatorSettings))


@click.command()
@takes(StatusSettings)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of a table")
@click.option("--watch", "watches", is_flag=True, help="Refresh continuously, with rates, until Ctrl-C or the key q")
@click.option(
    "--every",
    "every_s",
    type=duration,
    default="1s",
    metavar="DURATION",
    show_default=True,
    help="With --watch: the refresh interval",
)
@click.pass_context
def status(context: click.Context, as_json: bool, watches: bool, every_s: float) -> int:
    """Show position and lag of a group's replicator and workers; with a source (--host), also its slot.

    Exits with 1 if the group was never started on this NATS.
    """
    settings = load_settings(context, StatusSettings)
    if watches:
        if as_json:
            raise UsageError("--json and --watch are both given", "give one of them")
        from pgsluice.console.watch.live import run as watch

        return watch(settings, every_s)
    from pgsluice.console.status import run

    return run(settings, as_json)


@click.command()
@takes(GroupSettings)
@click.option("--worker", "worker", default="", metavar="NAME", help="Worker to check (default: all workers)")
@click.option(
    "--max",
    "max_s",
    type=duration,
    required=True,
    metavar="DURATION",
    help="Highest allowed age of the oldest unapplied change",
)
@click.option(
    "--max-messages", type=click.IntRange(min=0), metavar="NUMBER", help="Highest allowed number of waiting stream messages"
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of a line for each worker")
@click.pass_context
def lag(context: click.Context, worker: str, max_s: float, max_messages: int | None, as_json: bool) -> int:
    """Check whether a group keeps up, for cron jobs and probes: the age of the oldest unapplied change in the stream, and
    whether the replicator and the workers run.

    Exits with 0 if all are within --max. Exits with 1 if one is not, if its lag is unknown, if it has failed, or if it has
    not run for longer than --max. A group with mode copy is within --max when all workers have applied the whole copy.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.lag import LagLimit, run

    return run(settings, worker, LagLimit(max_s, max_messages), as_json=as_json)


_worker = click.option(
    "--worker", "worker", default="", metavar="NAME", help="Only dead letters of this worker (default: all workers)"
)
_positions = click.argument("positions", nargs=-1, metavar="[POSITION]...")
_all = click.option("--all", "every", is_flag=True, help="All dead letters, instead of positions")


@click.group()
@takes(GroupSettings)
def dead() -> None:
    """Show, replay or discard dead letters: changes that a worker could not apply, and later changes of the same rows.

    Name a dead letter by its position, which 'dead list' shows.
    """


@dead.command("list", short_help="List dead letters: position, table and reason.")
@takes(GroupSettings)
@_worker
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each dead letter instead of a table")
@click.pass_context
def dead_list(context: click.Context, worker: str, as_json: bool) -> None:
    """List dead letters with position, table and reason. No row value is shown."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.dead import list_letters

    list_letters(settings, worker, as_json=as_json)


@dead.command("show", short_help="Write dead letters as JSON lines, with their row values.")
@takes(GroupSettings)
@_worker
@_all
@_positions
@click.pass_context
def dead_show(context: click.Context, positions: tuple[str, ...], worker: str, every: bool) -> None:
    """Write the changes in dead letters to standard output, as JSON lines like those of 'worker stdout', row values included."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.dead import LetterSelection, show

    show(settings, LetterSelection(worker, positions, every))


@dead.command("replay", short_help="Ask a worker to apply dead letters again.")
@takes(GroupSettings)
@_worker
@_all
@_positions
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Longest wait for the outcome"
)
@click.pass_context
def dead_replay(context: click.Context, positions: tuple[str, ...], worker: str, every: bool, wait_s: float) -> None:
    """Ask the worker to apply dead letters again: now if it runs, otherwise at its next start.

    Earlier dead letters of the same rows are included. A change that fails again becomes a dead letter again.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.dead import LetterSelection, replay

    replay(settings, LetterSelection(worker, positions, every), wait_s)


@dead.command("discard", short_help="Remove dead letters permanently.")
@takes(GroupSettings)
@_worker
@_all
@_positions
@click.option("--yes", is_flag=True, help="Do not ask for confirmation")
@click.pass_context
def dead_discard(context: click.Context, positions: tuple[str, ...], worker: str, every: bool, yes: bool) -> None:
    """Remove dead letters permanently: their changes are never applied. Rows without dead letters are no longer blocked."""
    settings = load_settings(context, GroupSettings)
    if not yes:
        confirm("discard", "Remove these dead letters permanently?")
    from pgsluice.console.dead import LetterSelection, discard

    discard(settings, LetterSelection(worker, positions, every))


@click.command()
@takes(GroupSettings)
@click.option("--worker", default="", metavar="NAME", help="Worker to forget")
@click.option("--halt", is_flag=True, help="Forget why the replicator must not continue, after you removed the cause")
@click.option("--dead-letters", is_flag=True, help="Remove its dead letters too")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation")
@click.pass_context
def forget(context: click.Context, worker: str, halt: bool, dead_letters: bool, yes: bool) -> None:
    """Forget a worker that will not return, so that NATS no longer keeps messages for it. Its target stays unchanged.

    If the worker starts again under this name, it continues at its target's position, if the stream still has the messages
    from there on.

    With --halt, forget why the group's replicator stopped permanently, after the right server or a restored broker is
    available again.
    """
    if bool(worker) == halt:
        raise UsageError("no option names the state to forget", "give either --worker NAME or --halt")
    settings = load_settings(context, GroupSettings)
    if not yes:
        what = f"worker '{worker}'" if worker else "the findings of the replicator"
        confirm("forget", f"Forget {what} of group '{settings.group}'?")
    from pgsluice.console.forget import forget_halt, run

    if halt:
        forget_halt(settings)
    else:
        run(settings, worker, dead_letters=dead_letters)


@click.group()
def rules() -> None:
    """Check rules and routing files, and test them on changes.

    Both commands exit with 2 if there is an error, and with 0 otherwise.
    """


@rules.command("check")
@click.argument("file", required=False)
@click.option("--routing", metavar="FILE", default="", help="Also check this routing file")
@click.option("--search-mapping", metavar="FILE", default="", help="Also check this file of search-mapping")
@click.option("--against-source", is_flag=True, help="Also compare with the source's tables, columns and types")
@takes(SourceTablesSettings, required="required with --against-source")
@click.pass_context
def rules_check(context: click.Context, file: str | None, routing: str, search_mapping: str, against_source: bool) -> None:
    """Read the rules in FILE, and show every error in them.

    The options for the source and its tables are read, and required, only with --against-source. They are the replicator's
    options, so you can use its configuration file.
    """
    if not file and not routing and not search_mapping:
        raise UsageError("there is nothing to check", "name a rules file, or give --routing or --search-mapping")
    tables = _source_tables(context) if against_source else None
    from pgsluice.console.rules import check

    check(file or "", routing, tables, search_mapping)


@rules.command("test")
@click.argument("file")
@click.argument("input", required=False)
@click.option("--routing", metavar="FILE", default="", help="Routing file to apply after the rules")
@click.option("--against-source", is_flag=True, help="Read the column types from the source, instead of guessing them")
@takes(SourceTablesSettings, required="required with --against-source")
@click.pass_context
def rules_test(context: click.Context, file: str, input: str | None, routing: str, against_source: bool) -> None:
    """Apply the rules in FILE to changes, and show the effect of each rule: kept or dropped, before and after.

    INPUT contains changes as JSON lines, in the form that 'pgsluice worker stdout' prints (default: standard input). The
    output shows row values.
    """
    if input is None and sys.stdin.isatty():
        raise UsageError("there are no changes to try the rules on", "name a file of JSON lines, or pipe them in")
    tables = _source_tables(context) if against_source else []
    from pgsluice.console.rules import try_out

    try_out(file, routing, input, tables)


def _source_tables(context: click.Context) -> list[Table]:
    settings = load_settings(context, SourceTablesSettings)
    from pgsluice.replicator.membership.group_publication import load_source_tables

    return load_source_tables(settings)


@click.command("spark-archive")
def spark_archive() -> None:
    """Make Spark start faster. Run it once for each installation.

    Archives the JVM's classes next to the installed program (150 MB), for use by every later start: a worker's first batch
    needs 33 % less time. Needs Java and write permission there, and about 30 seconds. The image already contains the archive.
    """
    from pgsluice.console.spark_archive import run

    run()


@click.command()
@takes(DropSettings)
@click.option(
    "--nats-only",
    is_flag=True,
    help="Remove only the objects in NATS, without a connection to the source, which may no longer exist",
)
@click.option(
    "--source-only",
    is_flag=True,
    help="Remove only the objects at the source, without a connection to NATS, which may no longer exist",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation")
@click.pass_context
def drop(context: click.Context, nats_only: bool, source_only: bool, yes: bool) -> None:
    """Remove a group's objects at the source (slot, publication, capture of schema changes), and its streams and state in
    NATS.

    Targets stay unchanged. A group that a worker publishes has no objects at the source, so it needs no source options.
    """
    if nats_only and source_only:
        raise UsageError("--nats-only and --source-only are both given", "give one of them, or none to remove both halves")
    settings = _drop_settings(context, nats_only=nats_only, source_only=source_only)
    if not yes:
        halves = [f"at {settings.source.host}/{settings.source.dbname}"] if settings.source else []
        halves += ["with its streams"] if settings.nats else []
        confirm("drop", f"Drop group '{settings.group}' {' and '.join(halves)}?")
    from pgsluice.console.drop import run

    run(settings)


def _drop_settings(context: click.Context, *, nats_only: bool, source_only: bool) -> DropSettings:
    """Returns the settings without the half that is left alone, whose options may be missing then."""
    if nats_only:
        in_nats = load_settings(context, GroupSettings)
        return DropSettings(in_nats.group, in_nats.log, in_nats.nats, None)
    if source_only:
        at_source = load_settings(context, SourceGroupSettings)
        return DropSettings(at_source.group, at_source.log, None, at_source.source)
    try:
        return load_settings(context, DropSettings)
    except UsageError:
        in_nats = load_settings(context, GroupSettings)
        from pgsluice.console.drop import is_published_by_worker

        if not is_published_by_worker(in_nats.nats, in_nats.group):
            raise
        return DropSettings(in_nats.group, in_nats.log, in_nats.nats, None)
