"""The commands that speak to the source: ``replicator``, ``status`` and ``drop``."""

from __future__ import annotations

import sys

import click

from shared import config
from shared.command import load_values, takes
from shared.errors import UsageError
from shared.options import Role


@click.command()
@takes(Role.REPLICATOR)
@click.pass_context
def replicator(context: click.Context) -> None:
    """Publish a database's changes to NATS JetStream, until it is stopped or --until-lsn is reached."""
    settings = config.replicator_settings(load_values(context, Role.REPLICATOR))
    from replicator.replicator import run

    run(settings)


@click.command()
@takes(Role.STATUS)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of a table")
@click.pass_context
def status(context: click.Context, as_json: bool) -> int:
    """Show where a group's replicator and workers are; with a source (--host), its slot too.

    Exits with 1 when the group has never been started on this NATS.
    """
    settings = config.status_settings(load_values(context, Role.STATUS))
    from replicator.status import run

    return run(settings, as_json)


@click.command()
@takes(Role.DROP)
@click.option("--yes", is_flag=True, help="Do not ask before")
@click.pass_context
def drop(context: click.Context, yes: bool) -> None:
    """Remove a group's slot and publication at the source, and its streams and state in NATS. Targets are left as they are."""
    settings = config.drop_settings(load_values(context, Role.DROP))
    if not yes:
        _confirm(f"Drop group '{settings.group}' at {settings.source.host}/{settings.source.dbname} and its streams?")
    from replicator.drop import run

    run(settings)


def _confirm(question: str) -> None:
    """Raises UsageError unless the answer is yes; without a terminal there is nobody to ask."""
    if not sys.stdin.isatty():
        raise UsageError("drop asks before it removes anything, and standard input is not a terminal", "give --yes")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was dropped", "answer y, or give --yes")
