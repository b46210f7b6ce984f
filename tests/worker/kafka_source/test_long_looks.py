"""A look at topics that hold much adds a part to the index, which is worked on; the next look goes on at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.kafka.kafka_settings import KafkaSourceSettings
from pgsluice.worker.kafka_source import range_index
from pgsluice.worker.kafka_source.topic_ends import SourceTopics
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.test_index_trimmed import index_of
from tests.worker.kafka_source.written_topic import WrittenTopic
from tests.worker.published_stream import ids_in
from tests.worker.sinks.kafka.cluster import cluster_settings
from tests.worker.stage import Sqlite, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

TRANSACTIONS, ROWS = 6, 3
OFFSETS = TRANSACTIONS * (ROWS + 1)


@pytest.fixture
def topic(real_kafka: RealKafka, nats_server: NatsServer, group: str, monkeypatch: pytest.MonkeyPatch) -> WrittenTopic:
    """Of which a look adds one range of two records."""
    monkeypatch.setattr(range_index, "LONGEST_LOOK_S", 0.0)
    monkeypatch.setattr(range_index, "RANGE_RECORDS", 2)
    made = WrittenTopic(real_kafka, nats_server, group)
    for number in range(TRANSACTIONS):
        made.add(*range(ROWS * number, ROWS * (number + 1)))
    topics = SourceTopics(cluster_settings(real_kafka.bootstrap))
    wait_until(lambda: topics.stable_offsets(made.name, 1) == (OFFSETS,), what="the end of the last transaction")
    return made


def test_a_look_adds_a_part(topic: WrittenTopic, real_kafka: RealKafka, nats_server: NatsServer) -> None:
    with index_of(topic, nats_server, real_kafka) as index:
        begun, looks = index.begun(retention_s=3600.0), 1
        while begun.is_behind:
            assert index.state().last_sequence == looks
            assert begun._sizes is not None
            assert begun._sizes._fetcher.is_resting, "between two looks the brokers are asked for nothing"
            looks += begun.advance()
        assert looks == index.state().last_sequence == OFFSETS // 2


def test_the_next_look_goes_on_at_once(
    topic: WrittenTopic, real_kafka: RealKafka, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_index, "look_interval_s", lambda added: 3600.0)
    with index_of(topic, nats_server, real_kafka) as index, index.trimmed(retention_s=3600.0):
        wait_until(lambda: index.state().last_sequence == OFFSETS // 2, what="an index of all records")


def test_a_worker_that_is_to_end_by_itself_applies_all(topic: WrittenTopic, real_kafka: RealKafka, stage: Stage) -> None:
    stream = StreamSettings(1, (), 0, "none", 3600.0)
    kafka = KafkaSourceSettings(cluster=cluster_settings(real_kafka.bootstrap), topics=(topic.name,), stream=stream)
    stage.settings = replace(stage.settings, source=kafka, until_sequence="current")
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.finish()
    assert ids_in(stage.path) == list(range(TRANSACTIONS * ROWS))
