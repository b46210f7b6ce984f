"""How large records are: so a range, which a task holds as a whole, and a batch have the bytes that they are to have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.errors import HistoryError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.testing.changes_builder import insert
from pgsluice.testing.tried_batches import ACCOUNTS
from pgsluice.worker.kafka_source import record_sizes
from pgsluice.worker.kafka_source.range_index import RANGE_BYTES
from pgsluice.worker.kafka_source.record_fetcher import Measured
from pgsluice.worker.kafka_source.record_sizes import RecordSizes
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.test_index_trimmed import index_of
from tests.worker.kafka_source.test_record_fetcher import Written
from tests.worker.kafka_source.written_topic import WrittenTopic
from tests.worker.sinks.kafka.cluster import cluster_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

SMALL, LARGE = b"x" * 100, b"x" * 50_000


@pytest.fixture
def written(real_kafka: RealKafka, group: str) -> Written:
    return Written(real_kafka, group)


@pytest.fixture
def cluster(real_kafka: RealKafka) -> KafkaSettings:
    return cluster_settings(real_kafka.bootstrap)


def test_many_records_are_read_up_to_as_many_bytes_as_are_wanted(written: Written, cluster: KafkaSettings) -> None:
    first, sizes = written.write(0, [SMALL, LARGE] * 20), RecordSizes(cluster)
    assert sizes.measure(first, 10**9) == Measured(41, 20 * 50_100)
    assert sizes.measure(first, 200_000) == Measured(8, 4 * 50_100)
    assert sizes.measure(replace(first, first=8), 200_000) == Measured(16, 4 * 50_100)
    assert sizes.measure(first, 1) == Measured(1, 100)
    assert sizes.measure(first, 50_100) == Measured(2, 50_100)


def test_few_records_are_taken_to_be_like_those_that_were_read_before_them(
    written: Written, cluster: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sizes, "LONGEST_USE_S", 3600.0)
    many, few, sizes = written.write(0, [SMALL] * 30), written.write(1, [LARGE]), RecordSizes(cluster)
    assert sizes.measure(few, 10**9).size == 50_000, "nothing was read"
    assert sizes.measure(many, 10**9) == Measured(31, 3000)
    assert sizes.measure(few, 10**9) == Measured(2, 2 * (3000 // 31))
    assert sizes.measure(few, 50) == Measured(1, 3000 // 31)
    monkeypatch.setattr(record_sizes, "LONGEST_USE_S", 0.0)
    assert sizes.measure(few, 10**9) == Measured(2, 50_000)


def test_what_was_given_up_has_a_byte_and_tells_nothing_of_others(written: Written, cluster: KafkaSettings) -> None:
    gone, large, sizes = written.write(0, [LARGE], given_up=True), written.write(1, [LARGE]), RecordSizes(cluster)
    assert sizes.measure(gone, 10**9) == Measured(2, 1)
    assert sizes.measure(large, 10**9) == Measured(2, 50_000)


def test_records_that_are_gone_stop_the_index(written: Written, cluster: KafkaSettings) -> None:
    gone, there, sizes = written.write(0, [SMALL]), written.write(0, [SMALL]), RecordSizes(cluster)
    written.forget(there)
    with pytest.raises(HistoryError, match=f"records 0 to 1 of topic {written.name}, partition 0, are gone"):
        sizes.measure(gone, 10**9)
    assert sizes.measure(there, 10**9).size == 100


def test_a_range_of_large_records_has_few_of_them(real_kafka: RealKafka, nats_server: NatsServer, group: str) -> None:
    topic, rows = WrittenTopic(real_kafka, nats_server, group), 500
    topic.write(*(insert(ACCOUNTS, b"%d" % number, LARGE) for number in range(rows)))
    with index_of(topic, nats_server, real_kafka) as index:
        with index.trimmed(retention_s=3600.0):  # brokers end a transaction after they have answered
            wait_until(lambda: sum(index.sizes()) >= rows * len(LARGE), what="an index of all records")
        assert sum(index.sizes()) == pytest.approx(rows * len(LARGE), rel=0.05)
        assert max(index.sizes()) <= RANGE_BYTES + 2 * len(LARGE)
    assert topic.read() == list(range(rows))
