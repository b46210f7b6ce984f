"""Checks the origin of a request: the Host that it names, and the Origin of the page that sends it.

A server on loopback is within reach of any page that a browser shows: by a name that its owner resolves to 127.0.0.1
(DNS rebinding), or by a form that posts across origins. Both are recognizable by headers that a page cannot forge.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.shared.config.kinds import split_address
from pgsluice.shared.config.server_settings import TokenSettings
from pgsluice.shared.errors import UsageError

_LOOPBACK_NAMES = ("localhost",)
_LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
_MOST_ADDRESS_LENGTH = 64


@dataclass(frozen=True, slots=True)
class OwnOrigin:
    """The names of this server. ``hosts`` are names and addresses without ports; ``any_port``: a proxy in front of it
    listens on another one. ``is_secure``: browsers connect by https."""

    hosts: frozenset[str]
    port: int
    is_secure: bool
    any_port: bool = False

    def check(self, host: str, origin: str, fetch_site: str) -> None:
        """Raises Problem for a request whose headers name another server, or that another site's page sends."""
        if not self._is_ours(host, 443 if self.is_secure else 80):
            raise Problem(
                ProblemKind.FOREIGN,
                "the request names another host than this server's",
                "use the address that the server printed, or add the name to 'server-hosts'",
                "Host",
            )
        if origin and not self._is_own_origin(origin, host):
            raise Problem(
                ProblemKind.FOREIGN, "a page of another origin sends this request", "open the page of this server", "Origin"
            )
        if fetch_site not in ("", "same-origin", "none"):
            raise Problem(
                ProblemKind.FOREIGN, "a page of another site sends this request", "open the page of this server", "Sec-Fetch-Site"
            )

    def _is_ours(self, host: str, default_port: int) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = (parts.hostname or "").rstrip("."), parts.port or default_port
        except ValueError:
            return False
        return name in self.hosts and (self.any_port or port == self.port)

    def _is_own_origin(self, origin: str, host: str) -> bool:
        return origin.lower() == f"{'https' if self.is_secure else 'http'}://{host.lower()}"


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies in front of the server whose X-Forwarded-For is believed."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    @classmethod
    def of(cls, settings: TokenSettings) -> Proxies | None:
        """Returns None for a server without a proxy. Raises UsageError for a text that is no address or network."""
        if not settings.behind_proxy:
            return None
        try:
            return cls(tuple(ipaddress.ip_network(each, strict=False) for each in settings.proxies or _LOOPBACK_NETWORKS))
        except ValueError as error:
            raise UsageError(
                f"server-proxies contains an entry that is neither an address nor a network ({error})",
                "write addresses like 10.0.0.5 and networks like 10.0.0.0/8",
            ) from None

    def client(self, peer: str, forwarded: Sequence[str]) -> str:
        """Returns the client that the proxies speak for. Each proxy appends the address of its client, so the client is
        the last address that is not a proxy's."""
        addresses = [each.strip() for each in ",".join(forwarded).split(",") if each.strip()]
        found = peer
        while addresses and self._holds(found):
            found = addresses.pop()
        return found[:_MOST_ADDRESS_LENGTH]

    def _holds(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.networks)


def is_secure(settings: TokenSettings) -> bool:
    """Returns whether browsers reach the server by https."""
    return bool(settings.tls_cert) or settings.behind_proxy


def own_hosts(listen_host: str, configured: tuple[str, ...]) -> frozenset[str]:
    """Returns the names of a server that listens there: an address for all interfaces is no name."""
    names = {name.lower().rstrip(".") for name in configured}
    if is_loopback(listen_host):
        names |= {*_LOOPBACK_NAMES, "127.0.0.1", "::1", listen_host.lower()}
    elif not _is_unspecified(listen_host):
        names.add(listen_host.lower())
    return frozenset(names)


def address_of(settings: TokenSettings, port: int) -> str:
    """Returns the address for a browser."""
    host, _ = split_address(settings.listen)
    if settings.behind_proxy:
        return f"https://{settings.hosts[0]}"
    name = settings.hosts[0] if settings.hosts and settings.tls_cert else "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    return f"{'https' if settings.tls_cert else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
