"""The topics of the cluster, and the creation of topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, OffsetSpec, TopicDescription

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.kafka.cluster_brokers import ClusterBrokers
from pgsluice.worker.sinks.kafka.kafka_client import ANSWER_DEADLINE_S, SETTINGS_UNSEEN, Complaints
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings
from pgsluice.worker.sinks.kafka.topic_pattern import ONE_TO_KAFKA, alike
from pgsluice.worker.sinks.kafka.written_ends import Ends

MADE_DEADLINE_S = 30.0
LOOK_INTERVAL_S = 0.05
LARGEST_BATCH_BYTES = 512 * 1024


class ClusterTopics:
    """Blocking calls. Raises TransientError when the brokers do not answer, TerminalError for an error that an operator
    must fix."""

    def __init__(self, kafka: KafkaSinkSettings) -> None:
        self._kafka = kafka
        self._complaints = Complaints()
        self._brokers = ClusterBrokers(kafka.cluster, self._complaints)
        self._seen: set[str] = set()
        self.batch_bytes = LARGEST_BATCH_BYTES
        """The most records at a time that all topics are known to take, in bytes."""
        self._counts: dict[str, int] = {}
        """Numbers of partitions, by topic, from the last answer."""

    def names(self) -> set[str]:
        """Returns the existing topics. The cluster's brokers are checked like the ones of the settings."""
        found = self._brokers.metadata().topics
        self._note_counts(found)
        self._seen |= found.keys()
        return set(found)

    def judge_brokers(self) -> None:
        """Checks the brokers; call it before each batch. Raises as ``names`` when a broker has come that must not be
        connected to."""
        metadata = self._brokers.judge()
        if metadata is not None:
            self._note_counts(metadata.topics)

    def _note_counts(self, found: Mapping[str, Any]) -> None:
        self._counts = {name: len(topic.partitions) for name, topic in found.items()}

    def ends(self, topics: Iterable[str]) -> dict[str, Ends]:
        """Returns the end of each partition of the existing ``topics``, including open transactions."""
        counts = {topic: self._counts.get(topic) or self._partitions(topic) for topic in topics}
        places = [TopicPartition(topic, partition) for topic, count in counts.items() for partition in range(count)]
        found = self._offsets(dict.fromkeys(places, OffsetSpec.latest())) if places else {}
        return {topic: tuple(found[topic, partition] for partition in range(count)) for topic, count in counts.items()}

    def make_sure(self, topic: str) -> None:
        """Creates a missing topic, if configured. Raises as the class describes, also for a name that Kafka considers
        equal to another topic's."""
        if topic == self._kafka.position_topic:
            raise TerminalError(f"topic {topic} is where positions are, and a table's too", "give another kafka-position-topic")
        if topic in self._seen:
            return
        if self._kafka.create_topics and topic not in (there := self.names()):
            for _, other in collisions([topic], there):
                raise collision_error(topic, other)
            self.make(topic, self._kafka.partitions, {})
        self._seen.add(topic)

    def check_in_order(self, topic: str) -> None:
        """Raises TerminalError when a record in this topic has no place among those of other partitions."""
        partitions = self._partitions(topic)
        if partitions > 1:
            raise TerminalError(
                f"a table of topic {topic} was truncated or is copied again, and its rows lie in {partitions} "
                "partitions: no reader could distinguish the earlier ones",
                "write kafka-key: {table}, or give the table a topic with one partition; start over for that, with another "
                "kafka-topic and another --name",
            )

    def _partitions(self, topic: str) -> int:
        """Returns the number of the topic's partitions. Waits for a topic that was just created, until brokers know it."""
        deadline = time.monotonic() + MADE_DEADLINE_S
        while True:
            with self._complaints.translated(topic):
                found = self._brokers.client.list_topics(topic, timeout=ANSWER_DEADLINE_S).topics[topic]
            if found.error is None and found.partitions:
                return len(found.partitions)
            if time.monotonic() > deadline or (found.error is not None and found.error.code() not in _SETTLING):
                raise self._complaints.of(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE), topic)
            time.sleep(LOOK_INTERVAL_S)

    def make(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Creates the topic unless it exists by now, and returns when it can be used. Raises as the class describes."""
        copies = self._kafka.replication_factor or -1
        future = self._brokers.client.create_topics([NewTopic(topic, partitions or -1, copies, config=dict(config))])[topic]
        with self._complaints.translated(topic):
            try:
                future.result(ANSWER_DEADLINE_S)
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._seen.add(topic)

    def config(self, topic: str) -> dict[str, str]:
        """Returns the topic's settings; empty when this user may not see them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        with self._complaints.translated(topic):
            try:
                found: Mapping[str, Any] = self._brokers.client.describe_configs([resource])[resource].result(ANSWER_DEADLINE_S)
            except KafkaException as failure:
                if failure.args[0].code() in SETTINGS_UNSEEN:
                    return {}
                raise
        return {name: str(entry.value) for name, entry in found.items()}

    def unwritable(self, topics: Iterable[str]) -> list[str]:
        """Returns the topics that this user may not write to, sorted. Missing ones are considered writable."""
        with self._complaints.translated():
            asked = TopicCollection(sorted(topics))
            told = self._brokers.client.describe_topics(asked, include_authorized_operations=True)
            return [topic for topic, future in told.items() if not _lets_write(future)]

    def offsets(self, topic: str, partition: int, *, stable: bool = False) -> tuple[int, int]:
        """Returns the offsets of the first record, and of the next one, including open transactions; if ``stable``, of
        the first one that an open transaction may still abort. Waits for a topic that was just created."""
        committed = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        place = TopicPartition(topic, partition)
        first, end = (self._offsets({place: which}, committed) for which in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return first[topic, partition], end[topic, partition]

    def _offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], committed: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[tuple[str, int], int]:
        """Returns the offsets by topic and partition. Waits for partitions whose leaders are being chosen."""
        deadline = time.monotonic() + MADE_DEADLINE_S
        while True:
            with self._complaints.translated(next(iter(asked)).topic):
                try:
                    futures = self._brokers.client.list_offsets(dict(asked), isolation_level=committed)
                    return {
                        (each.topic, each.partition): future.result(ANSWER_DEADLINE_S).offset for each, future in futures.items()
                    }
                except KafkaException as failure:
                    if failure.args[0].code() not in _SETTLING or time.monotonic() > deadline:
                        raise
            time.sleep(LOOK_INTERVAL_S)


def _lets_write(description: Future[TopicDescription]) -> bool:
    try:
        allowed = description.result(ANSWER_DEADLINE_S).authorized_operations
    except KafkaException as failure:
        return bool(failure.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return allowed is None or AclOperation.WRITE in allowed


def collisions(wanted: Iterable[str], there: Iterable[str]) -> list[tuple[str, str]]:
    """Returns each wanted topic that cannot be created, because Kafka considers its name equal to another one's in
    ``there``."""
    others = {alike(topic): topic for topic in there}
    return [(topic, other) for topic in wanted if (other := others.get(alike(topic), topic)) != topic]


def collision_error(topic: str, other: str) -> TerminalError:
    return TerminalError(
        f"topic {topic} collides with topic {other}: {ONE_TO_KAFKA}",
        "give a kafka-topic without full stops, like {schema}-{table}",
    )


_SETTLING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._NOENT,  # no leader is known of any partition that was asked for
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
"""Errors of a partition whose leader is being chosen."""
