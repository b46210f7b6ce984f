"""Names and addresses of hosts: whether one can be looked up, and whether it is this machine."""

from __future__ import annotations

import ipaddress


def may_be_name(host: str) -> bool:
    """Returns whether a host can be looked up. For a text that is no name, such as a..b, Python raises an error that no client
    expects."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_of_one_machine(host: str) -> bool:
    """Returns whether ``host`` means another machine on each machine: a loopback address, or the directory of a socket."""
    if host.startswith(("/", "@")) or host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
