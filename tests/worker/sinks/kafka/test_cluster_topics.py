"""What the brokers say of topics that were just made."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from tests.servers.kafka import RealKafka
from tests.worker.sinks.kafka.cluster import kafka_settings

pytestmark = pytest.mark.kafka

TOPICS = 30


def test_a_topic_that_was_just_made_is_asked_for_its_partitions_until_the_brokers_know_them(
    real_kafka: RealKafka, group: str
) -> None:
    topics = ClusterTopics(kafka_settings(real_kafka, group))
    for number in range(TOPICS):
        topics.make(f"{group}.{number}", 3, {})
        with pytest.raises(TerminalError, match="rows lie in 3 partitions"):
            topics.check_in_order(f"{group}.{number}")
