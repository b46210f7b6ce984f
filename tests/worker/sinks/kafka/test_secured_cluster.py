"""Three brokers that ask for passwords, rights and TLS, through kills and elections: a worker with the rights that the page
names, and no others, leaves each transaction once, in order, as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.errors import MissingPrivilegeError
from tests.servers.kafka_cluster import BROKERS, KafkaCluster
from tests.worker.sinks.kafka.cluster import KafkaDestination
from tests.worker.sinks.kafka.elected_history import ALL, CLEAN, ElectedHistory
from tests.worker.sinks.kafka.rights import ASKS_FOR_RIGHTS, SCRAM_LOGIN, allow_as_the_page_says
from tests.worker.sinks.kafka.tls_files import TlsFiles

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1200)]

LISTENER, PASSWORD = "SECURED", "Pa55-word"


def settings_of_brokers(files: TlsFiles) -> Mapping[str, str]:
    login = {f"listener.name.{LISTENER.lower()}.scram-sha-512.sasl.jaas.config": SCRAM_LOGIN}
    return files.broker_settings() | dict(ASKS_FOR_RIGHTS) | {"sasl.enabled.mechanisms": "SCRAM-SHA-512"} | login


def test_a_worker_with_a_password_tls_and_the_named_rights_lives_through_kills_and_elections(group: str, tmp_path: Path) -> None:
    files = TlsFiles.make(tmp_path)
    users = {"writer": PASSWORD, "stranger": PASSWORD}
    with KafkaCluster(settings_of_brokers(files), listeners={LISTENER: "SASL_SSL"}, users=users) as cluster:
        allow_as_the_page_says(cluster, "writer", group)
        told: dict[str, Any] = {"tls": True, "ca_file": str(files.ca), "sasl": "scram-sha-512", "password": PASSWORD}
        told |= {"brokers": tuple(node.bootstrap_of(LISTENER) for node in cluster.nodes), "replication_factor": BROKERS}
        stranger = KafkaDestination(cluster, group, user="stranger", **told).new_sink()
        with pytest.raises(MissingPrivilegeError, match="does not let this user do that"):
            stranger.open()
        stranger.close()
        history = ElectedHistory(cluster, KafkaDestination(cluster, group, user="writer", **told))
        history.elect(CLEAN).check()
        history.kill_worker("commit_transaction", 2, "delivered")
        history.elect(ALL).check()
        history.close()
