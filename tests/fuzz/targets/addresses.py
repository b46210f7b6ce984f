"""Addresses that people name: receivers and which hosts may be one, servers, databases, places to listen.

The first line of an input is an address, the others are entries of ``allow-hosts``. A receiver is the host that its origin says,
and without an entry that names it no address that is not public is allowed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime

from pgsluice.shared.config.kinds import parse_address, parse_database_url, parse_servers, parse_url, split_address
from pgsluice.shared.config.postgres_url import url_parts
from pgsluice.shared.errors import UsageError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver
from pgsluice.worker.sinks.webhook.sender import parse_retry_after
from tests.fuzz.target import is_same, read

_NOW = datetime(2026, 1, 31, tzinfo=UTC)


def feed(data: bytes) -> None:
    try:
        text, *entries = data.decode().split("\n")
    except UnicodeDecodeError:
        return
    allowed = read(lambda: AllowedHosts.parse(entries), UsageError)
    url = read(lambda: parse_url(text), ValueError)
    if url is not None:
        _receiver(Receiver.parse(url), allowed)
    servers = read(lambda: parse_servers(text), ValueError)
    if servers is not None:
        is_same(servers, parse_servers(servers))
    if read(lambda: parse_address(text), ValueError) is not None:
        assert 0 <= split_address(text)[1] <= 65535
    if read(lambda: parse_database_url(text), ValueError) is not None:
        url_parts(text)
    assert 0 <= parse_retry_after(text, _NOW) < float("inf")


def _receiver(receiver: Receiver, allowed: AllowedHosts | None) -> None:
    is_same((receiver.host, receiver.port), (lambda again: (again.host, again.port))(Receiver.parse(parse_url(receiver.origin))))
    assert 0 < receiver.port < 65536
    assert receiver.target.startswith("/")
    address = read(lambda: ipaddress.ip_address(receiver.host), ValueError)
    if address is None:
        return
    if not _is_of_everybody(address):
        assert not AllowedHosts.parse(()).allows(receiver.host, address)
        assert not AllowedHosts.parse(("hooks.example.com",)).allows("hooks.example.com", address)
    if allowed is not None and allowed.allows(receiver.host, address) and not _is_of_everybody(address):
        assert any(address in network for network in allowed.networks)


def _is_of_everybody(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Returns what Python says, which depends on its patch level: ours may allow less."""
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_global and not (inner or address).is_multicast


def seeds() -> Iterator[bytes]:
    for url in (
        "https://hooks.example.com/path?token=1",
        "http://10.0.0.5:8080",
        "https://[2001:4860:4860::8888]:8443/a",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::a9fe:a9fe]",
        "http://169.254.169.254/latest",
        "http://8.8.8.8",
        "https://[fe80::1%25eth0]/",
        "nats://user:secret@nats:4222,tls://other",
        "postgres://app:p%40ss@db:5433/shop?sslmode=verify-full&sslrootcert=/etc/root.crt",
        "postgresql://[::1]/shop?host=a,b&ssl=true",
        "127.0.0.1:9464",
        "[::1]:0",
        "Sat, 31 Jan 2026 00:01:00 GMT",
        "120",
    ):
        yield url.encode()
        yield f"{url}\n10.0.0.0/8\nhooks.example.com\n[2001:db8::1]\n::/0".encode()
