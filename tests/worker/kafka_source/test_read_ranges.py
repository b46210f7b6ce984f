"""Ranges as tasks read them from a broker."""

from __future__ import annotations

import time

import pytest

from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.kafka_range import IndexEntry, KafkaRange, TopicEnds
from pgsluice.worker.kafka_source import record_fetcher
from pgsluice.worker.kafka_source.range_index import IndexEnd
from pgsluice.worker.kafka_source.range_reader import RangeReader
from pgsluice.worker.kafka_source.record_fetcher import READ_DEADLINE_S
from pgsluice.worker.kafka_source.topic_ends import SourceTopics
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.worker.kafka_source.written_topic import WrittenTopic
from tests.worker.sinks.kafka.cluster import cluster_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 10


class SlowNetwork:
    """As if a record took half of the time that a reader waits for the next."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def monotonic(self) -> float:
        self._now += READ_DEADLINE_S / 4
        return self._now


def test_a_range_whose_records_take_long_is_read_as_long_as_they_come(
    real_kafka: RealKafka, nats_server: NatsServer, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = WrittenTopic(real_kafka, nats_server, group)
    topic.add(*range(RECORDS))
    cluster = cluster_settings(real_kafka.bootstrap)
    topics = SourceTopics(cluster)
    [(topic_id, partitions)] = topics.described([topic.name]).values()
    ends = {topic.name: TopicEnds(topic_id, topics.stable_offsets(topic.name, partitions))}
    at = KafkaRange(topics.cluster_id(), topic.name, topic_id, 0, 0, ends[topic.name].offsets[0])
    headers, _ = IndexEnd().followed_by(at, ends)
    reader = RangeReader(cluster)
    reader.body(headers, IndexEntry(at, ends).encode())  # the consumer is connected then
    monkeypatch.setattr(record_fetcher, "AT_ONCE", 1)
    monkeypatch.setattr(record_fetcher, "time", SlowNetwork())
    body = reader.body(headers, IndexEntry(at, ends).encode())
    told = decode_changes(body, first_sequence=1, sequence=1, first_ordinal=headers.first.ordinal)
    assert sum(each.end_change - each.first_change for each in told.transactions) == RECORDS
