"""Which addresses may be posted to."""

from __future__ import annotations

import ipaddress
import re

import pytest

from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, allowed_addresses

NOT_PUBLIC = (
    "127.8.8.8",
    "10.0.0.5",
    "172.16.3.4",
    "169.254.169.254",  # metadata of most clouds
    "192.0.0.192",  # metadata of Oracle's
    "100.100.100.200",  # metadata of Alibaba's
    "fd00:ec2::254",  # metadata of Amazon's
    "224.0.0.1",
    "239.255.255.255",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "4000::1",
    "::127.0.0.1",
    "::93.184.215.14",
    "::ffff:10.0.0.5",
    "::ffff:0:127.0.0.1",
    "::ffff:0:93.184.215.14",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::c000:c0",
    "64:ff9b:1::5db8:d70e",
    "2002:a00:5::1",
    "2002:5db8:d70e::1",
    "2001:0:4136:e378:8000:63bf:f5ff:fffa",
    "2001:0:4136:e378:8000:63bf:a247:28f1",
)
_REGISTRY_4 = """
    0.0.0.0/8 0.0.0.0/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.0.0/29 192.0.0.8/32
    192.0.0.9/32 192.0.0.10/32 192.0.0.170/32 192.0.0.171/32 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24
    192.88.99.2/32 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 255.255.255.255/32
"""
_REGISTRY_6 = """
    ::1/128 ::/128 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128 2001:1::2/128 2001:1::3/128
    2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28 2001:30::/28 2001:db8::/32 2002::/16 2620:4f:8000::/48
    3fff::/20 5f00::/16 fc00::/7 fe80::/10
"""
SPECIAL_PURPOSE_4 = _REGISTRY_4.split()
"""Every row of IANA's IPv4 Special-Purpose Address Registry, reachable or not: no row is a place for somebody's receiver."""
SPECIAL_PURPOSE_6 = _REGISTRY_6.split()
"""The same of the IPv6 registry, but for the two rows whose addresses stand for those of version 4."""
STANDS_FOR_VERSION_4 = ("::ffff:0:0/96", "64:ff9b::/96")
PUBLIC = ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e")


def is_allowed(entries: tuple[str, ...], host: str, address: str) -> bool:
    return AllowedHosts.parse(entries).allows(host, ipaddress.ip_address(address))


def borders(network: str) -> tuple[str, str]:
    found = ipaddress.ip_network(network)
    return str(found.network_address), str(found.broadcast_address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed((), "hooks.example.com", address)


@pytest.mark.parametrize("network", [*SPECIAL_PURPOSE_4, *SPECIAL_PURPOSE_6])
def test_no_address_of_a_special_purpose_is_public(network: str) -> None:
    for address in borders(network):
        assert not is_allowed((), "hooks.example.com", address)
        assert is_allowed((network,), "hooks.example.com", address)


@pytest.mark.parametrize("network", SPECIAL_PURPOSE_4)
@pytest.mark.parametrize("outer", STANDS_FOR_VERSION_4)
def test_an_address_that_stands_for_one_of_version_4_is_judged_as_that_one(network: str, outer: str) -> None:
    prefix = int(ipaddress.ip_network(outer).network_address)
    for address in borders(network):
        spelled = str(ipaddress.IPv6Address(prefix | int(ipaddress.ip_address(address))))
        assert not is_allowed((), "hooks.example.com", spelled)


@pytest.mark.parametrize("network", ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15"])
def test_the_neighbours_of_a_private_network_are_public(network: str) -> None:
    private = ipaddress.ip_network(network)
    for address in (private.network_address - 1, private.broadcast_address + 1):
        assert is_allowed((), "hooks.example.com", str(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed_when_nothing_is_listed(address: str) -> None:
    assert is_allowed((), "hooks.example.com", address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_listed_name_does_not_vouch_for_an_address_that_is_not_public(address: str) -> None:
    assert not is_allowed(("hooks.example.com",), "hooks.example.com", address)


def test_what_is_not_listed_is_refused_when_there_is_a_list() -> None:
    assert is_allowed(("Hooks.example.com",), "hooks.example.com", PUBLIC[0])
    assert not is_allowed(("hooks.example.com",), "other.example.com", PUBLIC[0])
    assert not is_allowed(("10.0.0.0/8",), "hooks.example.com", PUBLIC[0])


@pytest.mark.parametrize("entry", ["10.0.0.5", "10.0.0.0/8", "0.0.0.0/0"])
def test_a_listed_address_is_allowed_under_any_name(entry: str) -> None:
    assert is_allowed((entry,), "hook.internal", "10.0.0.5")
    assert is_allowed(("hook.internal", entry), "hook.internal", "10.0.0.5")


def test_an_address_of_version_6_may_be_listed_in_brackets() -> None:
    assert is_allowed(("[::1]",), "::1", "::1")


@pytest.mark.parametrize("entry", ["10.0.0.0/33", "10.0.0.1/8", "https://hooks.example.com", "*.example.com", "host:8080"])
def test_an_entry_that_is_neither_name_nor_network_is_a_mistake(entry: str) -> None:
    with pytest.raises(UsageError, match="webhook-allow-hosts holds"):
        AllowedHosts.parse((entry,))


def test_a_name_is_looked_up_and_its_addresses_are_judged() -> None:
    receiver = Receiver.parse("http://localhost:8080/")
    with pytest.raises(TerminalError, match=r"the webhook's host localhost is not allowed: .*webhook-allow-hosts") as refused:
        allowed_addresses(receiver, AllowedHosts.parse(()))
    assert not re.search(r"127\.|::1", str(refused.value))  # whoever asks is told nothing of names that only we can look up
    with pytest.raises(TerminalError, match="is not allowed"):
        allowed_addresses(receiver, AllowedHosts.parse(("localhost",)))
    allowed = AllowedHosts.parse(("127.0.0.0/8", "::1"))
    assert all(address.is_loopback for address in allowed_addresses(receiver, allowed))


@pytest.mark.parametrize("url", ["http://2130706433/", "http://0x7f.1/", "http://127.1/"])
def test_another_spelling_of_an_address_is_that_address(url: str) -> None:
    with pytest.raises(TerminalError, match="is not allowed"):
        allowed_addresses(Receiver.parse(url), AllowedHosts.parse(()))


@pytest.mark.parametrize("host", ["nowhere.invalid", "hooks..example.com", f"{'a' * 64}.example.com"])
def test_a_name_that_cannot_be_looked_up_may_be_there_later(host: str) -> None:
    with pytest.raises(TransientError, match=rf"the address of {re.escape(host)} cannot be looked up"):
        allowed_addresses(Receiver.parse(f"https://{host}/"), AllowedHosts.parse(()))


@pytest.mark.parametrize(
    ("url", "receiver", "origin"),
    [
        ("https://example.com", Receiver(True, "example.com", 443, "/"), "https://example.com:443"),
        ("http://EXAMPLE.com/a/b?c=d", Receiver(False, "example.com", 80, "/a/b?c=d"), "http://example.com:80"),
        ("https://[2001:db8::1]:8443/a", Receiver(True, "2001:db8::1", 8443, "/a"), "https://[2001:db8::1]:8443"),
    ],
)
def test_a_url_has_parts_of_which_only_the_origin_is_shown(url: str, receiver: Receiver, origin: str) -> None:
    assert Receiver.parse(url) == receiver
    assert receiver.origin == origin
