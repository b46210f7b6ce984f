"""Settings of a Kafka cluster that a worker refuses before it connects to anything."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.kafka.broker_access import check_cluster
from tests.worker.sinks.kafka.cluster import cluster_settings

PLAIN = {"sasl": "plain", "user": "shop", "password": "geheim", "allow_hosts": ("192.0.2.0/24", "127.0.0.1")}


def test_a_password_does_not_go_to_another_machine_in_clear_text() -> None:
    with pytest.raises(UsageError, match="kafka-sasl: plain without kafka-tls") as refused:
        check_cluster(cluster_settings("192.0.2.1:9092", **PLAIN))
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("bootstrap", "changed"),
    [
        ("192.0.2.1:9092", {"tls": True}),
        ("192.0.2.1:9092", {"sasl": "scram-sha-256"}),
        ("192.0.2.1:9092", {"is_insecure": True}),
        ("127.0.0.1:9092", {}),
    ],
    ids=str,
)
def test_it_goes_by_tls_as_a_proof_within_the_machine_or_where_somebody_wants_it_so(
    bootstrap: str, changed: dict[str, Any]
) -> None:
    check_cluster(cluster_settings(bootstrap, **(PLAIN | changed)))
