"""The commands for people: ``rules`` checks rules and routing files and tries them on changes, ``forget`` removes a worker's
records, ``spark-archive`` makes Spark start faster."""

from __future__ import annotations

import sys

import click

from pgsluice.console.command import confirm, load_values, takes
from pgsluice.shared import config
from pgsluice.shared.config.option import Role
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import Table


@click.command()
@takes(Role.FORGET)
@click.option("--worker", default="", metavar="NAME", help="The worker to forget")
@click.option("--halt", is_flag=True, help="Forget why the replicator must not go on, when the cause is removed")
@click.option("--dead-letters", is_flag=True, help="Remove its dead letters too")
@click.option("--yes", is_flag=True, help="Do not ask before")
@click.pass_context
def forget(context: click.Context, worker: str, halt: bool, dead_letters: bool, yes: bool) -> None:
    """Forget a worker that does not come back, so that messages are no longer kept for it. Its target is left as it is.

    Should it start again under this name, it goes on where its target is, if the messages from there on are still kept.

    With --halt, forget why the group's replicator stopped for good: when the right server or a restored broker is there again.
    """
    if bool(worker) == halt:
        raise UsageError("what is to be forgotten is not said", "give either --worker NAME or --halt")
    settings = config.group_settings(load_values(context, Role.FORGET))
    if not yes:
        what = f"worker '{worker}'" if worker else "what the replicator found"
        confirm("forget", f"Forget {what} of group '{settings.group}'?")
    from pgsluice.console.forget import forget_halt, run

    if halt:
        forget_halt(settings)
    else:
        run(settings, worker, dead_letters=dead_letters)


@click.group()
def rules() -> None:
    """Check rules and routing files, and try them on changes.

    Both commands exit with 2 when something is wrong, and with 0 otherwise.
    """


@rules.command()
@click.argument("file", required=False)
@click.option("--routing", metavar="FILE", default="", help="Routing file to check too")
@click.option("--against-source", is_flag=True, help="Compare with the source's tables, columns and types too")
@takes(Role.RULES)
@click.pass_context
def check(context: click.Context, file: str | None, routing: str, against_source: bool) -> None:
    """Read the rules in FILE, and say everything that is wrong with them.

    The options that name the source and its tables are needed, and read, with --against-source only. They are those of the
    replicator, so its configuration file serves.
    """
    if not file and not routing:
        raise UsageError("there is nothing to check", "name a rules file, or give --routing")
    tables = _source_tables(context) if against_source else None
    from pgsluice.console.rules_check import run

    run(file or "", routing, tables)


@rules.command()
@click.argument("file")
@click.argument("input", required=False)
@click.option("--routing", metavar="FILE", default="", help="Routing file to apply after the rules")
@click.option("--against-source", is_flag=True, help="Take the columns' types from the source, instead of guessing them")
@takes(Role.RULES)
@click.pass_context
def test(context: click.Context, file: str, input: str | None, routing: str, against_source: bool) -> None:
    """Apply the rules in FILE to changes, and show what each rule does: kept, dropped, before and after.

    INPUT holds changes as JSON lines, as 'pgsluice worker stdout' prints them; standard input is read when none is named. What is
    shown are row values.
    """
    if input is None and sys.stdin.isatty():
        raise UsageError("there are no changes to try the rules on", "name a file of JSON lines, or pipe them in")
    tables = _source_tables(context) if against_source else []
    from pgsluice.console.rules_trial import run

    run(file, routing, input, tables)


def _source_tables(context: click.Context) -> list[Table]:
    settings = config.source_tables_settings(load_values(context, Role.RULES))
    from pgsluice.replicator.membership.group_publication import load_source_tables

    return load_source_tables(settings)


@click.command("spark-archive")
def spark_archive() -> None:
    """Make Spark start faster, once for an installation.

    The JVM's classes are archived beside the installed program (150 MB), from where every later start takes them: a
    worker's first batch comes after two thirds of the time. Needs Java and the right to write there; takes about half a
    minute. The image has such an archive already.
    """
    from pgsluice.console.spark_archive import run

    run()
