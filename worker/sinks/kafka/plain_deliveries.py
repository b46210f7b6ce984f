"""Delivery at least once, for brokers without transactions: the position is in the group's state bucket."""

from __future__ import annotations

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings
from pgsluice.worker.sinks.kafka.record_producer import RecordProducer
from pgsluice.worker.sinks.sink import Applied


class PlainDelivery:
    """Like ``TransactionalDelivery``, but records that were sent stay when it aborts."""

    def __init__(self, kafka: KafkaSinkSettings, settings: WorkerSettings) -> None:
        self._kafka = kafka
        self._positions = BucketPositions(settings.nats, settings.group, settings.name)
        self._topics: ClusterTopics | None = None
        self._producer: RecordProducer | None = None

    def open(self) -> Applied:
        self._topics = ClusterTopics(self._kafka)
        self._topics.names()
        return self._positions.load()

    def begin(self) -> Applied | None:
        assert self._topics is not None, "open comes first"
        self._topics.judge_brokers()
        if self._producer is None:
            self._producer = RecordProducer(self._kafka, "", self._topics)
        return None

    def send(self, body: bytes) -> int:
        assert self._producer is not None, "begin comes first"
        return self._producer.send(body)

    def finish(self, applied: Applied) -> None:
        assert self._producer is not None, "begin comes first"
        self._producer.settle()
        self._positions.store(applied)

    def renumber(self, applied: Applied) -> None:
        self._positions.renumber(applied)

    def abort(self, error: BaseException) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.discard()

    def close(self) -> None:
        self.abort(EOFError())
        self._topics = None
        self._positions.close()
