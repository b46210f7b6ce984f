"""Checks that a process is where it may work: raw rows, for example, stay in the domains that an operator named.

A NATS server sends its clients its JetStream domain, but not its tags, which only its system account may ask for. So a
process in a cluster without domains, whose servers have tags, gets its domain from its settings.
"""

from __future__ import annotations

from nats.aio.client import Client

from pgsluice.shared.config.placement_settings import PlacementSettings
from pgsluice.shared.errors import TerminalError


def check_domain(settings: PlacementSettings, client: Client) -> None:
    """Checks the domain; call it before any work. Raises TerminalError where this process may not work, or does not
    know its domain."""
    if not settings.allow_domains:
        return
    domain = settings.domain or str(client._server_info.get("domain") or "")
    allowed = ", ".join(settings.allow_domains)
    if not domain:
        raise TerminalError(
            f"DomainUnavailable: allow-domains is {allowed}, and the domain of this process is not configured",
            "give domain, or connect to a NATS server with a JetStream domain",
        )
    if domain not in settings.allow_domains:
        raise TerminalError(
            f"DomainUnavailable: this process is in domain '{domain}', and allow-domains is {allowed}",
            "start it in one of these domains, where it continues from its position; or allow this one",
        )
