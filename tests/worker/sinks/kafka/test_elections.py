"""Brokers that are killed under a worker, and leaders that are elected, cleanly or not: what Kafka loses, what is noticed of it,
and what is sent again."""

from __future__ import annotations

import os

import pytest

from tests.servers.kafka_cluster import BROKERS, KafkaCluster
from tests.worker.sinks.kafka.cluster import KafkaDestination
from tests.worker.sinks.kafka.elected_history import ALL, CLEAN, DATA, ONE_TOPIC, POSITIONS, ElectedHistory

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(7200)]

FEW = (CLEAN, ALL, CLEAN, DATA)
MANY = tuple(kind for last in (ALL, DATA, ONE_TOPIC, POSITIONS, ALL) for kind in (CLEAN, CLEAN, CLEAN, last))
KINDS = {4: FEW, 20: MANY}[int(os.environ.get("KAFKA_ELECTIONS", "4"))]


def test_a_worker_notices_what_an_unclean_election_lost_and_a_clean_one_loses_nothing(group: str) -> None:
    outcomes, lives = [], 1
    with KafkaCluster() as cluster:
        history = ElectedHistory(cluster, KafkaDestination(cluster, f"{group}-{lives}", replication_factor=BROKERS))
        for kind in KINDS:
            if history.is_over:
                lives += 1
                history = ElectedHistory(cluster, KafkaDestination(cluster, f"{group}-{lives}", replication_factor=BROKERS))
            outcomes.append(history.elect(kind))
            print(outcomes[-1], flush=True)
        history.close()
    for each in outcomes:
        each.check()
