"""The command ``check``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.check.check_settings import CheckSettings, parts_of
from pgsluice.console.check.selection import AskedParts, select
from pgsluice.console.flags import load_values, takes
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.sink_registry import SINKS

_EVERY = "every"


@click.command()
@takes(CheckSettings, shown=("config", "group", "nats-url", "source-url", "target-url"))
@click.option("--source", "source", is_flag=True, help="Check the source")
@click.option("--target", "target", is_flag=True, help="Check the target, a PostgreSQL database")
@click.option("--nats", "nats", is_flag=True, help="Check NATS")
@click.option(
    "--sink",
    "sink",
    is_flag=False,
    flag_value=_EVERY,
    type=click.Choice([*SINKS, _EVERY]),
    help="Check the sink of this kind, or every sink that the configuration names",
)
@click.option("--rules", "rules", is_flag=True, help="Check rules and routes against the source's tables")
@click.option("--pipelines", "pipelines", is_flag=True, help="Check SQL pipelines for problems that a run would refuse")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object")
@click.option("--sql", "as_sql", is_flag=True, help="Write only the SQL that fixes problems, one script for each server")
@click.pass_context
def check(
    context: click.Context,
    source: bool,
    target: bool,
    nats: bool,
    sink: str | None,
    rules: bool,
    pipelines: bool,
    as_json: bool,
    as_sql: bool,
) -> int:
    """Find every problem that would prevent replication, and its fix. Changes nothing.

    Checks everything that the configuration names, or only the parts that you select with the flags below. Accepts every
    option of the replicator and of the workers, so you can use their configuration file.

    Exits with 1 if there are errors, which would stop a start, and with 0 if there are only warnings.
    """
    if as_json and as_sql:
        raise UsageError("--json and --sql are both given", "give one of them")
    flags = (
        (AskedParts.SOURCE, source),
        (AskedParts.TARGET, target),
        (AskedParts.NATS, nats),
        (AskedParts.SINK, sink),
        (AskedParts.RULES, rules),
        (AskedParts.PIPELINES, pipelines),
    )
    parts = parts_of(load_values(context, CheckSettings))
    selection = select(parts, frozenset(flag for flag, is_given in flags if is_given), "" if sink in (None, _EVERY) else sink)
    from pgsluice.console.check.check import run

    return run(parts, selection, as_json=as_json, as_sql=as_sql)
