"""The index of what lies in Kafka does not grow for ever: what all workers have applied goes, and they go on behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from nats.aio.client import Client

from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.kafka.kafka_settings import KafkaSourceSettings
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.kafka_source.range_index import IndexThread, RangeIndex
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.written_topic import WrittenTopic
from tests.worker.sinks.kafka.cluster import cluster_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

CANNOT_SUCCEED = 70
MOST_BYTES = 1 << 20


class IndexOfGroup:
    """As a worker has it, with a thread that trims at each look."""

    def __init__(self, client: Client, loop: EventLoopThread, names: GroupNames, topic: WrittenTopic, broker: RealKafka) -> None:
        self._loop = loop
        self._client = client
        self._names = names
        self._stream = ChangeStream(client, names)
        self._cluster = cluster_settings(broker.bootstrap)
        self._topic = topic

    def state(self) -> StreamState:
        found = self._loop.run(self._stream.state())
        assert found is not None
        return found

    def sizes(self) -> list[int]:
        """Bytes that each message says its range has."""
        last = self.state().last_sequence
        found = self._loop.run(self._stream.fetch(1, last, MOST_BYTES))
        return [MessageHeaders.decode(each.headers).size or 0 for each in found]

    def begun(self, retention_s: float) -> RangeIndex:
        """Which has looked once."""
        stream = StreamSettings(1, (), 0, "none", retention_s)
        kafka = KafkaSourceSettings(cluster=self._cluster, topics=(self._topic.name,), stream=stream)
        index = RangeIndex(self._loop, self._client, self._names, kafka)
        index.begin("trimming", stream)
        return index

    @contextmanager
    def trimmed(self, retention_s: float) -> Iterator[None]:
        failed: list[BaseException] = []
        thread = IndexThread(self.begun(retention_s), lambda: None, failed.append, trim_interval_s=0.0)
        try:
            yield
        finally:
            thread.stop()
        assert failed == []


@contextmanager
def index_of(topic: WrittenTopic, nats: NatsServer, broker: RealKafka) -> Iterator[IndexOfGroup]:
    loop = EventLoopThread("test-index")
    client = loop.run(connect(nats.settings(), "test"))
    try:
        yield IndexOfGroup(client, loop, GroupNames(topic.keys["group"]), topic, broker)
    finally:
        loop.run(disconnect(client))
        loop.close()


def test_what_all_workers_applied_goes_and_each_goes_on_where_it_was(
    real_kafka: RealKafka, nats_server: NatsServer, group: str
) -> None:
    topic = WrittenTopic(real_kafka, nats_server, group)
    for number in (1, 2, 3):
        topic.add(number)
        assert topic.read() == [number]
        if number == 1:
            assert topic.read(name="slow") == [1]
    with index_of(topic, nats_server, real_kafka) as index:
        before = index.state()
        with index.trimmed(retention_s=3600.0):
            topic.add(4)
            wait_until(lambda: index.state().last_sequence > before.last_sequence, what="a message of the new record")
        assert (before.first_sequence, index.state().first_sequence) == (1, 1), "nothing is old enough"
        with index.trimmed(retention_s=0.0):
            wait_until(lambda: index.state().first_sequence == 2, what="an index without what both have applied")
            assert topic.read(name="slow") == [2, 3, 4]
            wait_until(lambda: index.state().first_sequence == 4, what="an index without what the other has applied")
        assert topic.read() == [4]
        with index.trimmed(retention_s=0.0):
            topic.add(5)
            wait_until(lambda: index.state().first_sequence == 5, what="an index of its newest message")
        assert topic.read() == [5]
    late = topic.run(name="late")
    assert (late.code, late.stdout) == (CANNOT_SUCCEED, "")
    assert "were not applied by this worker and are gone" in late.log
    assert "give this worker a separate group" in late.log
    assert topic.read(group=f"{topic.keys['group']}-2") == [1, 2, 3, 4, 5]
