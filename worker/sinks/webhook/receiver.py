"""Who receives: the parts of the URL, and which addresses may be connected to.

A configuration must not turn the worker against what only its own network can reach (a cloud's metadata service, a neighbour's
administration port). So an address is used only when it is public, or when it lies in a network that was allowed. It is looked
up and judged for every connection, and the connection is made to the judged address itself, so a name that changes its mind
in between gains nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pgsluice.shared.errors import TerminalError, TransientError, UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SPECIAL_PURPOSE = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24
    192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4
    240.0.0.0/4
    2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20
"""
"""Multicast, and every row of IANA's IPv4 and IPv6 Special-Purpose Address Registries (of the latter what lies in
_GLOBAL_UNICAST). Rows that are reachable from everywhere are anycast: the machine that answers is the nearest one, which may be
one of the worker's own network. 6to4 and Teredo tunnel to an address of version 4 that nobody judges. What Python itself thinks
of an address depends on its patch level."""
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, _SPECIAL_PURPOSE.split()))

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Outside of it no address of version 6 is public."""

_STANDS_FOR_VERSION_4 = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""Mapped addresses (RFC 4291), and those that a translator makes (RFC 6052) where the network speaks version 6 only."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """``target`` is path and query. Only ``origin`` may be shown: the rest of a webhook's URL often is its secret."""

    is_tls: bool
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, url: str) -> Receiver:
        """``url`` is what ``Kind.URL`` takes."""
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna" if not url.isascii() else "ascii").decode()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme == "https", host, parts.port or _DEFAULT_PORTS[parts.scheme], target)

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Without entries, every public address is allowed. With entries, what is not listed, by name or by address, is refused; an
    address that is not public must be listed itself, because whoever answers for a name can make it mean any address."""

    names: frozenset[str]
    networks: tuple[Network, ...]

    @classmethod
    def parse(cls, entries: Sequence[str]) -> AllowedHosts:
        """Entries are host names, addresses, or networks like 10.0.0.0/8. Raises UsageError for anything else."""
        names, networks = set(), []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]")))
            except ValueError as error:
                if "/" in entry or ":" in entry or "*" in entry:
                    raise UsageError(
                        f"webhook-allow-hosts holds '{entry}', which is neither a host name nor a network ({error})",
                        "write names like hooks.example.com, addresses like 10.0.0.5 and networks like 10.0.0.0/8",
                    ) from None
                names.add(entry.lower())
        return cls(frozenset(names), tuple(networks))

    def allows(self, host: str, address: Address) -> bool:
        if any(address in network for network in self.networks):
            return True
        is_listed = host in self.names or not (self.names or self.networks)
        return is_listed and _is_public(address)


def _is_public(address: Address) -> bool:
    if any(address in network for network in _STANDS_FOR_VERSION_4):
        return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def check_receiver(url: str, allow_hosts: Sequence[str]) -> None:
    """Raises UsageError or TerminalError when the receiver must not be posted to. One that cannot be looked up is not judged."""
    with contextlib.suppress(TransientError):
        allowed_addresses(Receiver.parse(url), AllowedHosts.parse(allow_hosts))


def allowed_addresses(receiver: Receiver, allowed: AllowedHosts) -> list[Address]:
    """The addresses of the receiver's host now that may be connected to, at least one, in the order to try them.

    Raises TransientError when the name cannot be looked up, TerminalError when no address of it is allowed.
    """
    try:
        answers = socket.getaddrinfo(receiver.host, receiver.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TransientError(
            f"the address of {receiver.host} cannot be looked up ({error.strerror or type(error).__name__})",
            "check the name and the name server",
        ) from None
    addresses = list(dict.fromkeys(ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers))
    usable = [address for address in addresses if allowed.allows(receiver.host, address)]
    if not usable:
        raise TerminalError(
            f"the webhook's host {receiver.host} ({addresses[0]}) is not allowed",
            "when it is meant to be reached, list it in webhook-allow-hosts: its name, and its address or network "
            "unless that is public",
        )
    return usable
