"""The command ``check``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.check.check_settings import CheckSettings, parts_of
from pgsluice.console.check.selection import Asked, select
from pgsluice.console.flags import load_values, takes
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.sink_registry import SINKS

_EVERY = "every"


@click.command()
@takes(CheckSettings, shown=("config", "group", "nats-url", "source-url", "target-url"))
@click.option("--source", "source", is_flag=True, help="Look at the source")
@click.option("--target", "target", is_flag=True, help="Look at the target, a PostgreSQL database")
@click.option("--nats", "nats", is_flag=True, help="Look at NATS")
@click.option(
    "--sink",
    "sink",
    is_flag=False,
    flag_value=_EVERY,
    type=click.Choice([*SINKS, _EVERY]),
    help="Look at the sink of a worker of that kind, or at every sink that the configuration names",
)
@click.option("--rules", "rules", is_flag=True, help="Hold rules and routes against the source's tables")
@click.option("--pipelines", "pipelines", is_flag=True, help="Look at SQL pipelines: what a run of each would refuse")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object")
@click.option("--sql", "as_sql", is_flag=True, help="Write nothing but the SQL that cures, one script for each server")
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
    """Find everything that would hinder replication, and what cures it. Nothing is touched.

    Looks at all that the configuration names, or at what the flags below name. Any option of the replicator and of the workers
    may be given; their configuration file serves.

    Exits with 1 when there are errors, which a start would stop at, and with 0 when there are only warnings.
    """
    if as_json and as_sql:
        raise UsageError("--json and --sql are both given", "give one of them")
    flags = (
        (Asked.SOURCE, source),
        (Asked.TARGET, target),
        (Asked.NATS, nats),
        (Asked.SINK, sink),
        (Asked.RULES, rules),
        (Asked.PIPELINES, pipelines),
    )
    parts = parts_of(load_values(context, CheckSettings))
    selection = select(parts, frozenset(flag for flag, is_given in flags if is_given), "" if sink in (None, _EVERY) else sink)
    from pgsluice.console.check.check import run

    return run(parts, selection, as_json=as_json, as_sql=as_sql)
