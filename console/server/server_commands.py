"""``pgsluice server`` and ``pgsluice token``: their flags and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes, variables_given
from pgsluice.shared.config.server_settings import ServerSettings, TokenSettings


@click.command()
@takes(ServerSettings)
@click.pass_context
def server(context: click.Context) -> None:
    """Serve the REST API and the web page for all groups on one NATS, until you stop it.

    Groups run without it, and continue when it ends. The first start creates a token; 'pgsluice token link' logs a browser
    in.
    """
    settings = load_settings(context, ServerSettings)
    from pgsluice.console.server.server import run

    run(settings, variables_given(context))


@click.group()
@takes(TokenSettings)
def token() -> None:
    """Show, create or revoke a server's access tokens, on its machine, and print login links for a browser."""


@token.command("list", short_help="Show the existing tokens.")
@takes(TokenSettings)
@click.pass_context
def token_list(context: click.Context) -> None:
    """Show the names, roles, groups and ages of tokens. The server does not store the tokens themselves."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import show

    show(settings)


@token.command("create", short_help="Create a token and print it.")
@takes(TokenSettings)
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), default="viewer", show_default=True)
@click.option(
    "--values", is_flag=True, help="Allow access to row values, including their delivery: messages, subscriptions, documents"
)
@click.option("--groups", default="*", show_default=True, help="Groups of the token: names and patterns, like 'shop*,orders'")
@click.pass_context
def token_create(context: click.Context, name: str, role: str, values: bool, groups: str) -> None:
    """Create a token, and print it: it cannot be shown again. A running server accepts it at once."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import create

    create(settings, name, role, values=values, groups=groups)


@token.command("revoke", short_help="Revoke a token, and end its sessions.")
@takes(TokenSettings)
@click.argument("name")
@click.pass_context
def token_revoke(context: click.Context, name: str) -> None:
    """Revoke a token, and end its sessions at once."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import revoke

    revoke(settings, name)


@token.command("link", short_help="Print a login link for a browser.")
@takes(TokenSettings)
@click.argument("name", default="admin")
@click.pass_context
def token_link(context: click.Context, name: str) -> None:
    """Print a link that logs a browser in as the token NAME (default: admin), once and within ten minutes."""
    settings = load_settings(context, TokenSettings)
    from pgsluice.console.server.token_list import link

    link(settings, name)
