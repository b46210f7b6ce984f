"""A topic that a first hop writes, without its processes, and the group that reads it."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic, TopicPartition

from pgsluice.testing.batch import apply as apply_batch
from pgsluice.testing.changes_builder import AnyChange, insert, message
from pgsluice.testing.tried_batches import ACCOUNTS
from tests.end_to_end.once import Outcome, apply, succeed
from tests.servers import Database, NatsServer
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.second_hop import second_hop
from tests.worker.sinks.kafka.cluster import KafkaDestination

ANSWER_S = 60.0


class WrittenTopic:
    """Of the table accounts, with one partition."""

    def __init__(self, broker: RealKafka, nats: NatsServer, group: str, target: Database | None = None, **more: Any) -> None:
        self._destination = KafkaDestination(broker, group, format="pgsluice")
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._written = self._lives = 0
        self.name = f"{group}.public.accounts"
        self.keys = second_hop(group, ["public.accounts"], target, nats, broker, **more)

    def write(self, *changes: AnyChange) -> None:
        """One source transaction."""
        self._written += 1
        sink = self._destination.new_sink(f"sink-{self._lives}")
        try:
            sink.open()
            apply_batch(sink, [[message(self._written, *changes)]])
        finally:
            sink.close()

    def add(self, *ids: int) -> None:
        self.write(*(insert(ACCOUNTS, b"%d" % each, b"n") for each in ids))

    def read(self, **changed: Any) -> list[int]:
        """The ids that ``worker stdout`` prints."""
        return ids_of(succeed(self.run(**changed)).stdout)

    def run(self, **changed: Any) -> Outcome:
        return apply(self.keys | changed, "stdout")

    def remove(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(ANSWER_S)
        wait_until(lambda: self.name not in self._admin.list_topics(timeout=ANSWER_S).topics, what="a topic that is gone")

    def make_anew(self) -> None:
        self.remove()
        self._lives += 1  # who wrote to the topic that is gone stops
        self._admin.create_topics([NewTopic(self.name, 1, 1)])[self.name].result(ANSWER_S)
        wait_until(self._is_there, what="the topic")

    def _is_there(self) -> bool:
        """A topic that was just made may be unknown for a moment."""
        described = self._admin.describe_topics(TopicCollection([self.name]))[self.name]
        try:
            return bool(described.result(ANSWER_S).partitions)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return False

    def forget(self, records: int = 0) -> None:
        """As when the retention time of the newest is over, but for so many."""
        place = TopicPartition(self.name, 0)
        end = self._admin.list_offsets({place: OffsetSpec.latest()})[place].result(ANSWER_S).offset
        border = TopicPartition(self.name, 0, end - records)
        self._admin.delete_records([border])[border].result(ANSWER_S)


def ids_of(printed: str) -> list[int]:
    return [json.loads(line)["after"]["id"] for line in printed.splitlines()]
