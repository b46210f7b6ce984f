"""What there is in the cluster, and the topics that are made in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.kafka.cluster_brokers import ClusterBrokers
from pgsluice.worker.sinks.kafka.kafka_client import ANSWER_DEADLINE_S, SETTINGS_UNSEEN, Complaints
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings

MADE_DEADLINE_S = 30.0
LOOK_INTERVAL_S = 0.05


class ClusterTopics:
    """Blocking calls. Raises TransientError when the brokers do not answer, TerminalError for what a person has to change."""

    def __init__(self, kafka: KafkaSinkSettings) -> None:
        self._kafka = kafka
        self._complaints = Complaints()
        self._brokers = ClusterBrokers(kafka.cluster, self._complaints)
        self._seen: set[str] = set()

    def names(self) -> set[str]:
        """The topics there are. The brokers that the cluster tells of are judged as those of the settings were."""
        found = set(self._brokers.metadata().topics)
        self._seen |= found
        return found

    def judge_brokers(self) -> None:
        """To be called before each batch. Raises as ``names`` when a broker has come that must not be connected to."""
        self._brokers.judge()

    def make_sure(self, topic: str) -> None:
        """Makes the topic when it is missing, if that is asked for."""
        if topic == self._kafka.position_topic:
            raise TerminalError(f"topic {topic} is where positions are, and a table's too", "give another kafka-position-topic")
        if topic in self._seen:
            return
        if self._kafka.create_topics and topic not in self.names():
            self.make(topic, self._kafka.partitions, {})
        self._seen.add(topic)

    def check_in_order(self, topic: str) -> None:
        """Raises TerminalError when a record in this topic has no place among those of other partitions."""
        partitions = self._partitions(topic)
        if partitions > 1:
            raise TerminalError(
                f"a table of topic {topic} was truncated or is copied again, and its rows lie in {partitions} "
                "partitions: no reader could tell which of them are from before",
                "write kafka-key: {table}, or give the table a topic with one partition; begin anew for that, with another "
                "kafka-topic and another --name",
            )

    def _partitions(self, topic: str) -> int:
        """How many the topic has. One that was just made is waited for: until brokers know it they tell of none."""
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
        """Returns when the topic can be used. One that is there by now is as good."""
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
        """The topic's settings; empty when this user may not see them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        with self._complaints.translated(topic):
            try:
                found: Mapping[str, Any] = self._brokers.client.describe_configs([resource])[resource].result(ANSWER_DEADLINE_S)
            except KafkaException as failure:
                if failure.args[0].code() in SETTINGS_UNSEEN:
                    return {}
                raise
        return {name: str(entry.value) for name, entry in found.items()}

    def offsets(self, topic: str, partition: int, *, stable: bool = False) -> tuple[int, int]:
        """Of the first record, and of the one that comes next, whether transactions there are open or not; when it is to be
        ``stable``, of the first one that an open transaction may take back. A topic that was just made is waited for."""
        committed = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        deadline = time.monotonic() + MADE_DEADLINE_S
        while True:
            with self._complaints.translated(topic):
                try:
                    first = self._offset(topic, partition, OffsetSpec.earliest(), committed)
                    return first, self._offset(topic, partition, OffsetSpec.latest(), committed)
                except KafkaException as failure:
                    if failure.args[0].code() not in _SETTLING or time.monotonic() > deadline:
                        raise
            time.sleep(LOOK_INTERVAL_S)

    def _offset(self, topic: str, partition: int, which: OffsetSpec, committed: IsolationLevel) -> int:
        place = TopicPartition(topic, partition)
        asked = self._brokers.client.list_offsets({place: which}, isolation_level=committed)
        found: int = asked[place].result(ANSWER_DEADLINE_S).offset
        return found


_SETTLING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
"""How a partition looks whose leader is being chosen."""
