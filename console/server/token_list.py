"""The work of ``pgsluice token``: tokens and links of the server whose state directory this is."""

from __future__ import annotations

import sys

from pgsluice.console.columns import format_columns
from pgsluice.console.server.access.entrance import Entrance, state_directory
from pgsluice.console.server.access.origin import address_of, is_secure
from pgsluice.console.server.access.principal import Role
from pgsluice.shared.config.kinds import split_address
from pgsluice.shared.config.server_settings import TokenSettings
from pgsluice.shared.errors import UsageError


def show(settings: TokenSettings) -> None:
    """Prints one line for each token."""
    rows = [
        (t.name, t.role.value, "yes" if t.values else "no", ",".join(t.groups), t.created_at[:19])
        for t in _entrance(settings).tokens.known()
    ]
    sys.stdout.writelines(f"{line}\n" for line in format_columns(("NAME", "ROLE", "VALUES", "GROUPS", "CREATED"), rows))


def create(settings: TokenSettings, name: str, role: str, *, values: bool, groups: str) -> None:
    """Prints the token's text, which is shown only this once. ``groups`` are names and patterns with commas between."""
    patterns = tuple(each.strip() for each in groups.split(",") if each.strip())
    sys.stdout.write(_entrance(settings).tokens.create(name, Role(role), values=values, groups=patterns) + "\n")


def revoke(settings: TokenSettings, name: str) -> None:
    _entrance(settings).tokens.revoke(name)


def link(settings: TokenSettings, name: str) -> None:
    """Prints it. Raises UsageError when there is no such token, or the server's port is not known from its settings."""
    entrance = _entrance(settings)
    token = entrance.tokens.named(name)
    if token is None:
        raise UsageError(f"there is no token named '{name}'", "'pgsluice token list' shows those that there are")
    _, port = split_address(settings.listen)
    if port == 0:
        raise UsageError(
            "listen names no port, so the server's address is not known", "give the --listen that the server printed"
        )
    sys.stdout.write(entrance.link_of(address_of(settings, port), token) + "\n")


def _entrance(settings: TokenSettings) -> Entrance:
    return Entrance.of(state_directory(settings), is_secure=is_secure(settings))
