"""What brokers are asked about the topics that are read, when they do not answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.worker.kafka_source import topic_ends
from pgsluice.worker.kafka_source.topic_ends import SourceTopics
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import cluster_settings, kafka_settings, open_transaction

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "question",
    [
        lambda topics, name: topics.described([name]),
        lambda topics, name: topics.stable_offsets(name, 1),
        lambda topics, name: topics.check_keeps_all(name),
    ],
    ids=["partitions", "offsets", "settings"],
)
def test_a_broker_that_stands_still_is_waited_for(
    real_kafka: RealKafka, group: str, monkeypatch: pytest.MonkeyPatch, question: Callable[[SourceTopics, str], None]
) -> None:
    ClusterTopics(kafka_settings(real_kafka, group)).make(group, 1, {})
    topics = SourceTopics(cluster_settings(real_kafka.bootstrap))
    assert topics.cluster_id()
    monkeypatch.setattr(topic_ends, "ANSWER_DEADLINE_S", 1.0)
    with real_kafka.paused(), pytest.raises(TransientError, match="does not answer"):
        question(topics, group)


def test_a_partition_goes_as_far_as_no_open_transaction_may_take_records_back(real_kafka: RealKafka, group: str) -> None:
    made = ClusterTopics(kafka_settings(real_kafka, group))
    made.make(group, 1, {})
    made.offsets(group, 0)
    topics = SourceTopics(cluster_settings(real_kafka.bootstrap))
    with open_transaction(real_kafka, group):
        assert topics.stable_offsets(group, 1) == (0,)
    wait_until(lambda: topics.stable_offsets(group, 1) == (2,), what="the record and what ends its transaction")
