"""The commands that speak to the source: ``replicator``, ``status`` and ``drop``."""

from __future__ import annotations

import click

from pgsluice.console.command import confirm, load_values, takes
from pgsluice.shared import config
from pgsluice.shared.config.options import Role
from pgsluice.shared.errors import UsageError


@click.command()
@takes(Role.REPLICATOR)
@click.pass_context
def replicator(context: click.Context) -> None:
    """Publish a database's changes to NATS JetStream, until it is stopped or --until-lsn is reached."""
    settings = config.replicator_settings(load_values(context, Role.REPLICATOR))
    from pgsluice.replicator.replicator import run

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
    from pgsluice.console.status import run

    return run(settings, as_json)


@click.command()
@takes(Role.DROP)
@click.option("--nats-only", is_flag=True, help="Remove what is in NATS; the source is not asked, it may be gone")
@click.option("--source-only", is_flag=True, help="Remove what is at the source; NATS is not asked, it may be gone")
@click.option("--yes", is_flag=True, help="Do not ask before")
@click.pass_context
def drop(context: click.Context, nats_only: bool, source_only: bool, yes: bool) -> None:
    """Remove a group's slot and publication at the source, and its streams and state in NATS. Targets are left as they are."""
    if nats_only and source_only:
        raise UsageError("--nats-only and --source-only are both given", "give one of them, or none to remove both halves")
    role = Role.DROP_FROM_NATS if nats_only else Role.DROP_FROM_SOURCE if source_only else Role.DROP
    settings = config.drop_settings(load_values(context, role), source=not nats_only, nats=not source_only)
    if not yes:
        halves = [f"at {settings.source.host}/{settings.source.dbname}"] if settings.source else []
        halves += ["with its streams"] if settings.nats else []
        confirm("drop", f"Drop group '{settings.group}' {' and '.join(halves)}?")
    from pgsluice.console.drop import run

    run(settings)
