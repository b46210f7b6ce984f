"""``pgsluice server`` and ``pgsluice token``: their flags and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes, variables_given
from pgsluice.shared.config.server_settings import ServerSettings, TokenSettings


@click.command()
@takes(ServerSettings)
@click.pass_context
def server(context: click.Context) -> None:
    """Serve the REST API and the page for all groups on one NATS, until it is stopped.

    Groups run without it, and go on when it ends. The first start makes a token; 'pgsluice token link' lets a browser in.
    """
    settings = load_settings(context, ServerSettings)
    from pgsluice.console.server.server import run

    run(settings, variables_given(context))


@click.group()
@takes(TokenSettings)
def token() -> None:
    """Show, create or revoke the tokens that a server takes, on its machine, and links that let a browser in once."""


@token.command("list", short_help="Show the tokens that there are.")
@takes(TokenSettings)
@click.pass_context
def token_list(context: click.Context) -> None:
    """Show the names, roles, groups and ages of tokens. The server stores no token's text."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import show

    show(settings)


@token.command("create", short_help="Make a token and print it.")
@takes(TokenSettings)
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), default="viewer", show_default=True)
@click.option("--values", is_flag=True, help="May see row values and have them sent: messages, subscriptions, documents")
@click.option("--groups", default="*", show_default=True, help="Groups of the token: names and patterns, like 'shop*,orders'")
@click.pass_context
def token_create(context: click.Context, name: str, role: str, values: bool, groups: str) -> None:
    """Make a token, and print it: it cannot be shown again. A server that runs takes it at once."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import create

    create(settings, name, role, values=values, groups=groups)


@token.command("revoke", short_help="End a token, and the sessions that began with it.")
@takes(TokenSettings)
@click.argument("name")
@click.pass_context
def token_revoke(context: click.Context, name: str) -> None:
    """End a token, and the sessions that began with it, at once."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import revoke

    revoke(settings, name)


@token.command("link", short_help="Print a link that lets a browser in once.")
@takes(TokenSettings)
@click.argument("name", default="admin")
@click.pass_context
def token_link(context: click.Context, name: str) -> None:
    """Print a link that lets a browser in once, within ten minutes, as the token NAME (default: admin)."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import link

    link(settings, name)
