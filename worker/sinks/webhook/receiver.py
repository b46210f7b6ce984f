"""Who receives: the parts of the URL, and which addresses may be connected to.

A configuration must not turn the worker against what only its own network can reach (a cloud's metadata service, a neighbour's
administration port). So an address is used only when it is public, or when it lies in a network that was allowed. It is looked
up and judged for every connection, and the connection is made to the judged address itself, so a name that changes its mind
in between gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from shared.errors import TerminalError, TransientError, UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are the IPv4 address that is reached


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
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address.teredo is not None:
            embedded = address.teredo[1]
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return _is_public(embedded)
    return address.is_global and not address.is_multicast


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
