"""A NATS server with users that have the permissions that ``pgsluice nats permissions`` prints, and an administrator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pgsluice.shared.config.settings import NatsSettings
from tests.servers.nats import NatsServer
from tests.servers.program import PgsluiceProcess

PASSWORD = "s3cret"
ADMINISTRATOR = "administrator"
VIOLATION = "Violation"
"""In the server's log, where a user does what it may not."""


def user_keys(group: str) -> dict[str, Any]:
    """The options of a group's processes, but for nats-url."""
    return {
        "group": group,
        "nats-user": group,
        "nats-password": PASSWORD,
        "nats-inbox-prefix": f"_INBOX_{group}",
        "nats-create-streams": "false",
    }


def printed_permissions(group: str, *flags: str) -> str:
    """For the user of that group."""
    with PgsluiceProcess("nats", "permissions", *flags, config=user_keys(group) | {"nats-url": "nats://unasked"}) as process:
        assert process.wait() == 0, process.log()
        return process.stdout()


class PermittedNats(NatsServer):
    """``users`` are groups, each with the flags of the command that prints its user's permissions."""

    def __init__(self, users: Mapping[str, tuple[str, ...]]) -> None:
        permitted = [
            f"{{ user: {group}, password: {PASSWORD}, {printed_permissions(group, *flags)} }}" for group, flags in users.items()
        ]
        administrator = f"{{ user: {ADMINISTRATOR}, password: {PASSWORD} }}"
        super().__init__(config="authorization {\nusers = [\n" + "\n".join([administrator, *permitted]) + "\n]\n}\n")

    def keys(self, group: str) -> dict[str, Any]:
        return user_keys(group) | {"nats-url": self.url}

    def settings_of(self, group: str) -> NatsSettings:
        of_user = replace(self.settings(), user=group, password=PASSWORD)
        return replace(of_user, inbox_prefix=f"_INBOX_{group}", creates_streams=False)

    def create(self, group: str, *flags: str) -> None:
        """As the administrator does."""
        keys = {"group": group, "nats-url": self.url, "nats-user": ADMINISTRATOR, "nats-password": PASSWORD}
        with PgsluiceProcess("nats", "create", *flags, config=keys) as process:
            assert process.wait() == 0, process.log()

    def violations(self) -> list[str]:
        return [line for line in self.log().splitlines() if VIOLATION in line]
