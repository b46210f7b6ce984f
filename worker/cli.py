"""The command ``worker`` with one subcommand for each sink."""

from __future__ import annotations

import click

from shared import config
from shared.command import load_values, takes
from shared.options import Role


@click.group()
@takes(Role.WORKER)
def worker() -> None:
    """Apply a group's changes to a sink. The options below can also be given behind the sink's name."""


@worker.command(short_help="Write one JSON line for each change to standard output.")
@takes(Role.WORKER, Role.STDOUT)
@click.pass_context
def stdout(context: click.Context) -> None:
    """Write one JSON line for each change to standard output, in commit order."""
    values = load_values(context, Role.WORKER, Role.STDOUT)
    settings = config.worker_settings(values, "stdout")
    from worker.sinks.stdout import StdoutSink
    from worker.worker import run

    run(settings, StdoutSink(settings, values.switch("transactions")))


@worker.command(short_help="Apply the changes to a PostgreSQL database.")
@takes(Role.WORKER, Role.POSTGRES)
@click.pass_context
def postgres(context: click.Context) -> None:
    """Apply the changes to a PostgreSQL database, from one source commit to a later one in one transaction."""
    values = load_values(context, Role.WORKER, Role.POSTGRES)
    settings = config.worker_settings(values, "postgres")
    from worker.sinks.postgres import PostgresSink
    from worker.worker import run

    run(settings, PostgresSink(settings, config.postgres_sink_settings(values)))
