"""Ranges as tasks read them from a broker."""

from __future__ import annotations

import time

import pytest

from pgsluice.shared.errors import HistoryError
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.kafka_range import IndexEntry, KafkaRange, TopicEnds
from pgsluice.shared.wire.table import Value
from pgsluice.worker.kafka_source import record_fetcher
from pgsluice.worker.kafka_source.range_index import IndexEnd
from pgsluice.worker.kafka_source.range_reader import RangeReader
from pgsluice.worker.kafka_source.record_fetcher import READ_DEADLINE_S
from pgsluice.worker.kafka_source.topic_ends import SourceTopics
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.written_topic import WrittenTopic
from tests.worker.sinks.kafka.cluster import cluster_settings, open_transaction

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 6


class SlowNetwork:
    """As if a record took half of the time that a reader waits for the next."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def monotonic(self) -> float:
        self._now += READ_DEADLINE_S / 4
        return self._now


class ReadTopic:
    """Of one partition."""

    def __init__(self, broker: RealKafka, name: str) -> None:
        cluster = cluster_settings(broker.bootstrap)
        self._name = name
        self._topics = SourceTopics(cluster)
        self._reader = RangeReader(cluster)
        [(self._id, _)] = self._topics.described([name]).values()

    def end(self, transactions: int) -> int:
        """After so many, each of them one record and what ends it, which brokers write after they have answered."""
        wait_until(lambda: self._topics.stable_offsets(self._name, 1) == (2 * transactions,), what="the end of a transaction")
        return 2 * transactions

    def ids(self, first: int, end: int) -> list[Value]:
        at = KafkaRange(self._topics.cluster_id(), self._name, self._id, 0, first, end)
        ends = {self._name: TopicEnds(self._id, (end,))}
        headers, _ = IndexEnd().followed_by(at, ends, 1)
        body = self._reader.body(headers, IndexEntry(at, ends).encode())
        told = decode_changes(body, first_sequence=1, sequence=1, first_ordinal=headers.first.ordinal)
        return [value for part in told.parts if isinstance(part, TableChanges) for value in part.new[0]]


def test_a_range_whose_records_take_long_is_read_as_long_as_they_come(
    real_kafka: RealKafka, nats_server: NatsServer, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = WrittenTopic(real_kafka, nats_server, group)
    for number in range(RECORDS):
        topic.add(number)
    read = ReadTopic(real_kafka, topic.name)
    end, wanted = read.end(RECORDS), [b"%d" % number for number in range(RECORDS)]
    assert read.ids(0, end) == wanted, "the consumer is connected then"
    monkeypatch.setattr(record_fetcher, "AT_ONCE", 1)
    monkeypatch.setattr(record_fetcher, "time", SlowNetwork())
    assert read.ids(0, end) == wanted


def test_what_was_given_up_is_neither_read_nor_waited_for(real_kafka: RealKafka, nats_server: NatsServer, group: str) -> None:
    topic = WrittenTopic(real_kafka, nats_server, group)
    topic.add(1)
    read = ReadTopic(real_kafka, topic.name)
    first = read.end(1)
    with open_transaction(real_kafka, topic.name):
        assert read.ids(0, first) == [b"1"]
    second = read.end(2)
    assert read.ids(first, second) == []
    assert read.ids(0, second) == [b"1"]
    topic.add(2)
    assert read.ids(second, read.end(3)) == [b"2"]
    assert read.ids(first, read.end(3)) == [b"2"]


def test_records_of_a_topic_that_was_made_anew_are_not_taken_for_those_of_the_old_one(
    real_kafka: RealKafka, nats_server: NatsServer, group: str
) -> None:
    topic = WrittenTopic(real_kafka, nats_server, group)
    topic.add(1)
    read = ReadTopic(real_kafka, topic.name)
    end = read.end(1)
    assert read.ids(0, end) == [b"1"]
    topic.make_anew()
    topic.add(2)
    with pytest.raises(HistoryError, match="created again"):
        read.ids(0, end)
