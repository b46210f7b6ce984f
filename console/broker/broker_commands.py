"""``pgsluice nats permissions`` and ``nats create``: their flags and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.settings import BrokerSetupSettings

_pipeline = click.option(
    "--pipeline", "pipeline", is_flag=True, help="The group is a SQL pipeline's: no changes, and its document"
)
_server = click.option("--server", "server", is_flag=True, help="For 'pgsluice server' too: documents, and the audit")


@click.group()
def nats() -> None:
    """What an administrator of NATS does for a group."""


@nats.command()
@takes(BrokerSetupSettings)
@_pipeline
@_server
@click.pass_context
def permissions(context: click.Context, pipeline: bool, server: bool) -> None:
    """Print what a group's NATS user needs, as a NATS server's configuration has it. Asks nobody.

    With --nats-create-streams=false the user may neither make nor change nor remove a stream.
    """
    settings = load_settings(context, BrokerSetupSettings)
    from pgsluice.console.broker.broker_setup import print_permissions

    print_permissions(settings, is_pipeline=pipeline, is_server=server)


@nats.command()
@takes(BrokerSetupSettings)
@_pipeline
@_server
@click.pass_context
def create(context: click.Context, pipeline: bool, server: bool) -> None:
    """Make a group's streams and bucket, or bring them to the configuration. Run it as a NATS user who may.

    The group's processes run with nats-create-streams: false then.
    """
    settings = load_settings(context, BrokerSetupSettings)
    from pgsluice.console.broker.broker_setup import create_streams

    create_streams(settings, is_pipeline=pipeline, is_server=server)
