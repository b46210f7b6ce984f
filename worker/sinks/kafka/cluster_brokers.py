"""A cluster's list of brokers: requested, and checked against the permitted hosts, like the brokers of the settings."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.worker.sinks.kafka.broker_access import check_brokers
from pgsluice.worker.sinks.kafka.kafka_client import ANSWER_DEADLINE_S, Complaints, client_settings

JUDGED_FOR_S = 5.0
"""Time for which checked brokers stay valid: others may join, or move."""
LISTED_S = 1.0
COMPLAINTS_S = 3.0
"""Time for which starting brokers may refuse clients that they do not know yet."""


class ClusterBrokers:
    """Blocking calls. Raises TransientError when the brokers do not answer, TerminalError for an error that an operator
    must fix, for example a broker that must not be connected to."""

    def __init__(self, cluster: KafkaSettings, complaints: Complaints) -> None:
        self._allow_hosts = cluster.allow_hosts
        self._complaints = complaints
        with complaints.translated():
            self.client = AdminClient(client_settings(cluster, complaints))
        self._judged_at = -JUDGED_FOR_S

    def metadata(self) -> Any:
        """Returns the brokers' metadata, after checking them."""
        metadata = self._listed()
        check_brokers([_address(each) for each in metadata.brokers.values()], self._allow_hosts)
        self._judged_at = time.monotonic()
        return metadata

    def judge(self) -> Any:
        """Returns the metadata when they are asked, as they are now and then; else None. To be called again and again."""
        return self.metadata() if time.monotonic() - self._judged_at >= JUDGED_FOR_S else None

    def _listed(self) -> Any:
        """The library asks for as long as it may, whatever it hears meanwhile: so it may for a moment only, again and again."""
        began_at = time.monotonic()
        while True:
            try:
                metadata = self.client.list_topics(timeout=LISTED_S)
            except KafkaException as failure:
                self.client.poll(0)  # the complaints
                patience_s = ANSWER_DEADLINE_S if self._complaints.cause() is None else COMPLAINTS_S
                if time.monotonic() - began_at >= patience_s:
                    raise self._complaints.of(failure.args[0]) from None
            else:
                self._complaints.forget()
                return metadata


def _address(broker: Any) -> str:
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host}:{broker.port}"
