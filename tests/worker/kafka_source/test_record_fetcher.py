"""Ranges of several partitions, in the order in which an index names them: each holds its records, whatever came before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pgsluice.shared.errors import HistoryError
from pgsluice.shared.wire.kafka_range import KafkaRange
from pgsluice.worker.kafka_source import record_fetcher
from pgsluice.worker.kafka_source.record_fetcher import RecordFetcher
from tests.servers.kafka import RealKafka
from tests.worker.sinks.kafka.cluster import cluster_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

PARTITIONS = 3
ANSWER_S = 60.0


class Written:
    """A topic of ours and its transactional producer."""

    def __init__(self, broker: RealKafka, name: str) -> None:
        self.name = name
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(ANSWER_S)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
        self._producer.init_transactions(ANSWER_S)
        self._ends = [0] * PARTITIONS

    def write(self, partition: int, values: list[bytes], *, given_up: bool = False) -> KafkaRange:
        """One transaction; returns where it lies, with its end."""
        first = self._ends[partition]
        self._ends[partition] += len(values) + 1
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self.name, value, partition=partition)
        self._producer.flush(ANSWER_S)
        if given_up:
            self._producer.abort_transaction(ANSWER_S)
        else:
            self._producer.commit_transaction(ANSWER_S)
        return KafkaRange("cluster", self.name, "id", partition, first, self._ends[partition])

    def forget(self, before: KafkaRange) -> None:
        border = TopicPartition(self.name, before.partition, before.first)
        self._admin.delete_records([border])[border].result(ANSWER_S)


@pytest.fixture
def written(real_kafka: RealKafka, group: str) -> Written:
    return Written(real_kafka, group)


@pytest.fixture
def fetcher(real_kafka: RealKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordFetcher]:
    monkeypatch.setattr(record_fetcher, "READ_DEADLINE_S", 20.0)
    made = RecordFetcher(cluster_settings(real_kafka.bootstrap))
    yield made
    made.close()


def values(fetcher: RecordFetcher, at: KafkaRange) -> list[bytes]:
    return [value for _, value in fetcher.fetch(at).records]


def some(name: int, count: int = 3, size: int = 0) -> list[bytes]:
    return [b"%d/%d" % (name, each) + b"x" * size for each in range(count)]


def test_ranges_of_partitions_in_turn_hold_their_records(written: Written, fetcher: RecordFetcher) -> None:
    """Written before any was read, and while others are."""
    ranges = [(each, written.write(each % PARTITIONS, some(each))) for each in range(12)]
    for each, at in ranges:
        assert values(fetcher, at) == some(each)
    for each in range(12, 18):
        assert values(fetcher, written.write(each % PARTITIONS, some(each))) == some(each)


def test_a_range_may_lie_behind_or_far_before_the_one_that_was_read(
    written: Written, fetcher: RecordFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = [written.write(0, some(each)) for each in range(8)]
    for longest in (record_fetcher.LONGEST_SKIP, 0):
        monkeypatch.setattr(record_fetcher, "LONGEST_SKIP", longest)
        for each in (1, 2, 5, 7, 0, 6, 6, 3):
            assert values(fetcher, ranges[each]) == some(each)


def test_what_was_read_ahead_is_not_asked_for_again(written: Written, fetcher: RecordFetcher) -> None:
    first, second, _ = (written.write(0, some(each)) for each in range(3))
    assert values(fetcher, first) == some(0)
    assigned = fetcher._assigned
    assert assigned is not None
    assert values(fetcher, second) == some(1)
    assert fetcher._assigned is assigned


def test_a_part_of_a_transaction_and_the_rest_of_it_are_ranges_too(written: Written, fetcher: RecordFetcher) -> None:
    at = written.write(1, some(0, count=10))
    halves = [KafkaRange("cluster", at.topic, "id", 1, first, until) for first, until in ((at.first, 4), (4, at.end))]
    assert [values(fetcher, half) for half in halves] == [some(0, count=10)[:4], some(0, count=10)[4:]]


def test_ranges_without_records_are_empty_at_once(written: Written, fetcher: RecordFetcher) -> None:
    """Transactions that were given up, one after the other, at the end of the partition and in its middle."""
    given_up = [written.write(0, some(each), given_up=True) for each in range(3)]
    assert [values(fetcher, at) for at in given_up] == [[], [], []]
    following = written.write(0, some(3))
    assert values(fetcher, following) == some(3)
    assert [values(fetcher, at) for at in given_up] == [[], [], []]


def test_records_larger_than_what_is_fetched_at_once_are_read(written: Written, fetcher: RecordFetcher) -> None:
    sizes = (record_fetcher.FETCH_BYTES + 1, 10, record_fetcher.AHEAD_BYTES // 3)
    large = [(size, written.write(0, some(size, size=size))) for size in sizes]
    for size, at in large:
        assert values(fetcher, at) == some(size, size=size)


def test_nothing_is_asked_for_while_no_range_is_read(written: Written, fetcher: RecordFetcher) -> None:
    for each in range(3):
        assert values(fetcher, written.write(each % 2, some(each))) == some(each)
        assert fetcher.is_resting
    gone = written.write(0, some(3))
    written.forget(before=written.write(0, some(4)))
    with pytest.raises(HistoryError):
        values(fetcher, gone)
    assert fetcher.is_resting


def test_records_that_are_gone_are_missed_only_by_their_ranges(written: Written, fetcher: RecordFetcher) -> None:
    first, second, third = (written.write(2, some(each)) for each in range(3))
    assert values(fetcher, first) == some(0)
    fetcher.rest()  # what was read ahead would be there all the same
    written.forget(before=third)
    with pytest.raises(HistoryError, match=f"records {second.first} to {second.end - 1} of topic {written.name}, partition 2"):
        values(fetcher, second)
    assert values(fetcher, third) == some(2)


def test_records_that_go_while_they_are_passed_over_are_not_missed(written: Written, fetcher: RecordFetcher) -> None:
    """More than the library reads ahead lies between."""
    large = record_fetcher.AHEAD_BYTES // 4
    first = written.write(0, some(1))
    for each in range(2, 12):
        written.write(0, some(each, count=1, size=large))
    last = written.write(0, some(12))
    assert values(fetcher, first) == some(1)
    written.forget(before=last)
    assert values(fetcher, last) == some(12)
