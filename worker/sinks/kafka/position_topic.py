"""The topic of positions: a compacted topic, in whose only used partition each worker has a key.

    orders/kafka    {"worker": "orders/kafka", "writer": "5f0c…", "applied": "[…]", "ends": {"public.orders": [700, 698]}}

``writer`` names the process that wrote it, ``ends`` are ``WrittenEnds``; earlier versions wrote none. A record is in
the transaction whose changes it covers, and the first one of a process only registers it as the writer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pgsluice.shared.errors import Cause, TerminalError, TransientError, WireError
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.kafka_client import ANSWER_DEADLINE_S, WITHOUT_GROUP, Complaints, client_settings
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings
from pgsluice.worker.sinks.kafka.written_ends import WrittenEnds
from pgsluice.worker.sinks.sink import Applied

PARTITION = 0
NEWEST = 512
"""The number of records that are looked at first: a worker's own is most often one of the last."""
GROWTH = 16

_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1"}
"""Small segments, because the newest one is never compacted."""


@dataclass(frozen=True, slots=True)
class PositionEntry:
    worker: str
    writer: str
    applied: Applied
    ends: WrittenEnds

    def encode(self) -> bytes:
        content = {"worker": self.worker, "writer": self.writer, "applied": self.applied.encode(), "ends": self.ends.by_topic}
        return orjson.dumps(content)

    @classmethod
    def decode(cls, text: bytes) -> PositionEntry:
        """Raises WireError."""
        try:
            content = orjson.loads(text)
            ends = WrittenEnds.decode(content.get("ends", {}))
            return cls(content["worker"], content["writer"], Applied.decode(content["applied"]), ends)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"a position in Kafka is malformed ({type(error).__name__})") from None


def check_compacted(topics: ClusterTopics, name: str) -> None:
    """Raises TerminalError for a topic that forgets. One whose settings this user may not see is not judged."""
    policy = topics.config(name).get("cleanup.policy", "compact")
    if policy != "compact":
        raise TerminalError(
            f"topic {name} is not compacted (cleanup.policy {policy}): it would lose positions",
            "set its cleanup.policy to compact, or give another kafka-position-topic: the worker makes it",
        )


class PositionTopic:
    """Blocking calls."""

    def __init__(self, kafka: KafkaSinkSettings, topics: ClusterTopics, worker: str) -> None:
        self._kafka = kafka
        self._topics = topics
        self._worker = worker
        self._key = worker.encode()
        self._complaints = Complaints()

    @property
    def name(self) -> str:
        return self._kafka.position_topic

    @property
    def key(self) -> bytes:
        return self._key

    def ensure(self) -> None:
        """Creates the topic when it is missing. Raises TerminalError for a topic with retention."""
        if self.name not in self._topics.names():
            self._topics.make(self.name, 1, _CONFIG)
            return
        check_compacted(self._topics, self.name)

    def read(self, *, passes_open: bool = False) -> PositionEntry | None:
        """Returns this worker's newest committed entry; None without one. Raises TransientError while a transaction
        before the end is undecided, unless records from there on are ignored: ``passes_open``."""
        first, end = self._topics.offsets(self.name, PARTITION, stable=passes_open)
        count = NEWEST
        while end > first:
            start = max(first, end - count)
            found = self._last_between(start, end)
            if found is not None:
                return PositionEntry.decode(found)
            if start == first:
                break
            count *= GROWTH
        return None

    def _last_between(self, start: int, end: int) -> bytes | None:
        settings = client_settings(self._kafka.cluster, self._complaints) | {
            "group.id": f"pgsluice.{self._worker}",  # none is joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
        }
        with self._complaints.translated(self.name):
            consumer = Consumer(settings)
            try:
                consumer.assign([TopicPartition(self.name, PARTITION, start)])
                return self._last_of(consumer, end)
            finally:
                consumer.close()

    def _last_of(self, consumer: Consumer, end: int) -> bytes | None:
        found: bytes | None = None
        deadline = time.monotonic() + ANSWER_DEADLINE_S
        while time.monotonic() < deadline:
            record = consumer.poll(0.5)
            if record is None:
                continue
            error = record.error()
            if error is None:
                found = record.value() if record.key() == self._key and record.value() else found
            elif error.code() not in (KafkaError._PARTITION_EOF, WITHOUT_GROUP):
                raise KafkaException(error)
            elif error.code() == KafkaError._PARTITION_EOF and record.offset() >= end:
                return found
        raise self._complaints.cause() or TransientError(
            f"topic {self.name} cannot be read to its end", "another worker's transaction may be open there", Cause.TARGET
        )
