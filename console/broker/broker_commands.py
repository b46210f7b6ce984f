"""``pgsluice nats permissions`` and ``nats create``: their flags and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_values, takes
from pgsluice.shared import config
from pgsluice.shared.config.settings import BrokerSetupSettings
from pgsluice.worker.sinks.nats.options import NatsSinkSettings

_TARGET = ("nats-stream", "nats-group", "nats-subject", "nats-stream-replicas", "nats-stream-max-bytes", "nats-stream-max-age")
_SHOWN = {"config", "group", "nats-url", *_TARGET}

_pipeline = click.option(
    "--pipeline", "pipeline", is_flag=True, help="Prepare the group of a SQL pipeline: without a change stream, with its document"
)
_server = click.option(
    "--server", "server", is_flag=True, help="Include the objects of 'pgsluice server': documents, and the audit"
)


@click.group()
def nats() -> None:
    """Prepare NATS for a group: print the permissions of its user, create its streams."""


@nats.command()
@takes(BrokerSetupSettings, NatsSinkSettings, shown=_SHOWN)
@_pipeline
@_server
@click.pass_context
def permissions(context: click.Context, pipeline: bool, server: bool) -> None:
    """Print the permissions of a group's NATS user, in the form of a NATS server's configuration. Does not connect to a
    server.

    With nats-stream or nats-group they include those of 'pgsluice worker nats'. With --nats-create-streams=false the user is
    not allowed to create, change or remove a stream.
    """
    settings, target = _settings(context)
    from pgsluice.console.broker.broker_setup import print_permissions

    print_permissions(settings, target, is_pipeline=pipeline, is_server=server)


@nats.command()
@takes(BrokerSetupSettings, NatsSinkSettings, shown=_SHOWN)
@_pipeline
@_server
@click.pass_context
def create(context: click.Context, pipeline: bool, server: bool) -> None:
    """Create a group's streams and bucket, or change them to match the configuration. Run it as a NATS user who is allowed
    to.

    With nats-stream it creates that stream too. Then run the group's processes with nats-create-streams: false.
    """
    settings, target = _settings(context)
    from pgsluice.console.broker.broker_setup import create_streams

    create_streams(settings, target, is_pipeline=pipeline, is_server=server)


def _settings(context: click.Context) -> tuple[BrokerSetupSettings, NatsSinkSettings]:
    values = load_values(context, BrokerSetupSettings, NatsSinkSettings)
    return config.make(BrokerSetupSettings, values), config.make(NatsSinkSettings, values)
