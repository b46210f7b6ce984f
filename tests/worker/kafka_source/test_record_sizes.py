"""How large records are taken to be: a range, which a task holds as a whole, and a batch have the bytes that they are to have."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import HistoryError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.worker.kafka_source import record_sizes
from pgsluice.worker.kafka_source.range_index import RANGE_BYTES
from pgsluice.worker.kafka_source.record_sizes import RANGES_PER_SAMPLE, USUAL_BYTES, RecordSizes
from tests.changes_builder import insert
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.test_index_trimmed import index_of
from tests.worker.kafka_source.test_record_fetcher import Written
from tests.worker.kafka_source.written_topic import WrittenTopic
from tests.worker.sinks.kafka.cluster import cluster_settings
from tests.worker.sinks.tried_batches import ACCOUNTS

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

SMALL, LARGE = b"x" * 100, b"x" * 50_000


@pytest.fixture
def written(real_kafka: RealKafka, group: str) -> Written:
    return Written(real_kafka, group)


@pytest.fixture
def cluster(real_kafka: RealKafka) -> KafkaSettings:
    return cluster_settings(real_kafka.bootstrap)


def test_what_is_read_of_a_topic_holds_for_some_ranges(
    written: Written, cluster: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sizes, "LONGEST_USE_S", 3600.0)
    large, small, sizes = written.write(0, [LARGE] * 30), written.write(1, [SMALL] * 30), RecordSizes(cluster)
    assert [sizes.of(large), *(sizes.of(small) for _ in range(RANGES_PER_SAMPLE))] == [50_000] * RANGES_PER_SAMPLE + [100]


def test_what_is_read_of_a_topic_holds_for_a_while(
    written: Written, cluster: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sizes, "LONGEST_USE_S", 0.0)
    large, small, sizes = written.write(0, [LARGE, SMALL]), written.write(1, [SMALL]), RecordSizes(cluster)
    assert (sizes.of(large), sizes.of(small)) == (25_050, 100)


def test_what_was_given_up_tells_no_size(written: Written, cluster: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sizes, "LONGEST_USE_S", 0.0)
    gone, large, sizes = written.write(0, [SMALL], given_up=True), written.write(0, [LARGE]), RecordSizes(cluster)
    assert [sizes.of(gone), sizes.of(large), sizes.of(gone)] == [USUAL_BYTES, 50_000, 50_000]


def test_records_that_are_gone_stop_the_index(written: Written, cluster: KafkaSettings) -> None:
    gone, there, sizes = written.write(0, [SMALL]), written.write(0, [SMALL]), RecordSizes(cluster)
    written.forget(there)
    with pytest.raises(HistoryError, match=f"records 0 to 1 of topic {written.name}, partition 0, are gone"):
        sizes.of(gone)
    assert sizes.of(there) == 100


def test_a_range_of_large_records_has_few_of_them(real_kafka: RealKafka, nats_server: NatsServer, group: str) -> None:
    topic, rows = WrittenTopic(real_kafka, nats_server, group), 500
    topic.write(*(insert(ACCOUNTS, b"%d" % number, LARGE) for number in range(rows)))
    with index_of(topic, nats_server, real_kafka) as index:
        with index.trimmed(retention_s=3600.0):  # brokers end a transaction after they have answered
            wait_until(lambda: sum(index.sizes()) >= rows * len(LARGE), what="an index of all records")
        assert sum(index.sizes()) == pytest.approx(rows * len(LARGE), rel=0.05)
        assert max(index.sizes()) <= RANGE_BYTES
    assert topic.read() == list(range(rows))
