"""Addresses of the types inet and cidr, as keys that compare as the server compares them."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_interface

NetworkKey = tuple[int, str, int]


@lru_cache(maxsize=8192)
def network_key(text: str) -> NetworkKey:
    """The version, the bits of the network, the whole address: IPv4 comes before IPv6, a network before those inside it.

    Raises ValueError with the end of a sentence that begins with the text.
    """
    try:
        interface = ip_interface(text)
    except ValueError:
        raise ValueError("is not an address (write one like 192.168.0.1 or 10.0.0.0/8)") from None
    bits = f"{int(interface.ip):0{interface.max_prefixlen}b}"
    return interface.version, bits[: interface.network.prefixlen], int(interface.ip)
