"""Which brokers may be connected to: the rules of ``shared.http.receiver`` for every address that a client of Kafka uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from pgsluice.shared.config.kinds import split_address
from pgsluice.shared.errors import TransientError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, allowed_addresses

OPTIONS = "kafka"


def check_brokers(addresses: Iterable[str], allow_hosts: Sequence[str]) -> None:
    """Raises UsageError or TerminalError when one of them must not be connected to. One that cannot be looked up is not judged:
    no connection can be made to it either."""
    allowed = AllowedHosts.parse(allow_hosts, OPTIONS)
    for address in addresses:
        host, port = split_address(address)
        with contextlib.suppress(TransientError):
            allowed_addresses(Receiver(is_tls=False, host=host, port=port, target="", options=OPTIONS), allowed)
