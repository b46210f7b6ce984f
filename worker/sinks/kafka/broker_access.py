"""Decides which brokers may be connected to: applies the rules of ``shared.http.receiver`` to every address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from pgsluice.shared.config.kinds import split_address
from pgsluice.shared.errors import TransientError, UsageError
from pgsluice.shared.hosts import is_of_one_machine
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, allowed_addresses
from pgsluice.shared.kafka.kafka_settings import NO_SASL, KafkaSettings

OPTIONS = "kafka"


def check_brokers(addresses: Iterable[str], allow_hosts: Sequence[str]) -> None:
    """Raises UsageError or TerminalError when one of them must not be connected to. One that cannot be looked up is not judged:
    no connection can be made to it either."""
    allowed = AllowedHosts.parse(allow_hosts, OPTIONS)
    for address in addresses:
        host, port = split_address(address)
        with contextlib.suppress(TransientError):
            allowed_addresses(Receiver(is_tls=False, host=host, port=port, target="", options=OPTIONS), allowed)


def _are_here(addresses: Iterable[str]) -> bool:
    return all(is_of_one_machine(split_address(address)[0]) for address in addresses)


def check_cluster(cluster: KafkaSettings) -> None:
    """Raises as ``check_brokers``, and UsageError when the settings contradict each other."""
    is_named, has_sasl = bool(cluster.user or cluster.password), cluster.sasl != NO_SASL
    if has_sasl and not (cluster.user and cluster.password):
        raise UsageError(f"kafka-sasl: {cluster.sasl} needs kafka-user and kafka-password", "give both")
    if is_named and not has_sasl:
        raise UsageError("kafka-user and kafka-password have no meaning with kafka-sasl: none", "write kafka-sasl: scram-sha-512")
    if cluster.sasl == "plain" and not cluster.tls and not (cluster.is_insecure or _are_here(cluster.brokers)):
        raise UsageError(
            "kafka-sasl: plain without kafka-tls would send the password in clear text to another machine",
            "write kafka-tls: true, or kafka-sasl: scram-sha-512; kafka-insecure: true allows plain connections",
        )
    if bool(cluster.cert_file) is not bool(cluster.key_file):
        raise UsageError("of kafka-client-cert and kafka-client-key only one is given", "give both or none")
    if (cluster.ca_file or cluster.cert_file) and not cluster.tls:
        raise UsageError("kafka-ca and kafka-client-cert have no meaning without TLS", "write kafka-tls: true, or remove them")
    check_brokers(cluster.brokers, cluster.allow_hosts)
