"""Which addresses may be posted to."""

from __future__ import annotations

import ipaddress

import pytest

from shared.errors import TerminalError, TransientError, UsageError
from worker.sinks.webhook.receiver import AllowedHosts, Receiver, allowed_addresses

NOT_PUBLIC = (
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.5",
    "172.16.3.4",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "192.0.2.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "ff02::1",
    "2001:db8::1",
    "::ffff:10.0.0.5",
    "64:ff9b::a9fe:a9fe",
    "2002:a00:5::1",
    "2001:0:4136:e378:8000:63bf:f5ff:fffa",
)
PUBLIC = ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e")


def is_allowed(entries: tuple[str, ...], host: str, address: str) -> bool:
    return AllowedHosts.parse(entries).allows(host, ipaddress.ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed((), "hooks.example.com", address)


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
    with pytest.raises(TerminalError, match=r"the webhook's host localhost \(.*\) is not allowed: .*webhook-allow-hosts"):
        allowed_addresses(receiver, AllowedHosts.parse(()))
    with pytest.raises(TerminalError, match="is not allowed"):
        allowed_addresses(receiver, AllowedHosts.parse(("localhost",)))
    allowed = AllowedHosts.parse(("127.0.0.0/8", "::1"))
    assert all(address.is_loopback for address in allowed_addresses(receiver, allowed))


@pytest.mark.parametrize("url", ["http://2130706433/", "http://0x7f.1/", "http://127.1/"])
def test_another_spelling_of_an_address_is_that_address(url: str) -> None:
    with pytest.raises(TerminalError, match=r"\(127\.0\.0\.1\) is not allowed"):
        allowed_addresses(Receiver.parse(url), AllowedHosts.parse(()))


def test_a_name_that_cannot_be_looked_up_may_be_there_later() -> None:
    with pytest.raises(TransientError, match=r"the address of nowhere\.invalid cannot be looked up"):
        allowed_addresses(Receiver.parse("https://nowhere.invalid/"), AllowedHosts.parse(()))


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
