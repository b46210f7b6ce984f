"""What there is in the cluster, and the topics that are made in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.kafka.broker_access import check_brokers
from pgsluice.worker.sinks.kafka.kafka_client import ANSWER_DEADLINE_S, Complaints, client_settings
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings

MADE_DEADLINE_S = 30.0
JUDGED_FOR_S = 5.0
"""How long the brokers are taken for those that they were: others may join, or move."""
LOOK_INTERVAL_S = 0.05
LISTED_S = 1.0
COMPLAINTS_S = 3.0
"""How long brokers that start may refuse whom they do not know yet."""


class ClusterTopics:
    """Blocking calls. Raises TransientError when the brokers do not answer, TerminalError for what a person has to change."""

    def __init__(self, kafka: KafkaSinkSettings) -> None:
        self._kafka = kafka
        self._complaints = Complaints()
        with self._complaints.translated():
            self._client = AdminClient(client_settings(kafka.cluster, self._complaints))
        self._seen: set[str] = set()
        self._judged_at = -JUDGED_FOR_S

    def names(self) -> set[str]:
        """The topics there are. The brokers that the cluster tells of are judged as those of the settings were."""
        metadata = self._metadata()
        check_brokers([_address(each) for each in metadata.brokers.values()], self._kafka.cluster.allow_hosts)
        self._judged_at = time.monotonic()
        self._seen |= set(metadata.topics)
        return set(metadata.topics)

    def judge_brokers(self) -> None:
        """To be called before each batch. Raises as ``names`` when a broker has come that must not be connected to."""
        if time.monotonic() - self._judged_at >= JUDGED_FOR_S:
            self.names()

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
                found = self._client.list_topics(topic, timeout=ANSWER_DEADLINE_S).topics[topic]
            if found.error is None and found.partitions:
                return len(found.partitions)
            if time.monotonic() > deadline or (found.error is not None and found.error.code() not in _SETTLING):
                raise self._complaints.of(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE), topic)
            time.sleep(LOOK_INTERVAL_S)

    def make(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Returns when the topic can be used. One that is there by now is as good."""
        copies = self._kafka.replication_factor or -1
        future = self._client.create_topics([NewTopic(topic, partitions or -1, copies, config=dict(config))])[topic]
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
                found: Mapping[str, Any] = self._client.describe_configs([resource])[resource].result(ANSWER_DEADLINE_S)
            except KafkaException as failure:
                if failure.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                    return {}
                raise
        return {name: str(entry.value) for name, entry in found.items()}

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Of the first record, and of the one that comes next, whether transactions there are open or not. A topic that was just
        made is waited for."""
        deadline = time.monotonic() + MADE_DEADLINE_S
        while True:
            with self._complaints.translated(topic):
                try:
                    return self._offset(topic, partition, OffsetSpec.earliest()), self._offset(
                        topic, partition, OffsetSpec.latest()
                    )
                except KafkaException as failure:
                    if failure.args[0].code() not in _SETTLING or time.monotonic() > deadline:
                        raise
            time.sleep(LOOK_INTERVAL_S)

    def _metadata(self) -> Any:
        """The library asks for as long as it may, whatever it hears meanwhile: so it may for a moment only, again and again."""
        began_at = time.monotonic()
        while True:
            try:
                metadata = self._client.list_topics(timeout=LISTED_S)
            except KafkaException as failure:
                self._client.poll(0)  # the complaints
                patience_s = ANSWER_DEADLINE_S if self._complaints.cause() is None else COMPLAINTS_S
                if time.monotonic() - began_at >= patience_s:
                    raise self._complaints.of(failure.args[0]) from None
            else:
                self._complaints.forget()
                return metadata

    def _offset(self, topic: str, partition: int, which: OffsetSpec) -> int:
        place = TopicPartition(topic, partition)
        found: int = self._client.list_offsets({place: which})[place].result(ANSWER_DEADLINE_S).offset
        return found


_SETTLING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
"""How a partition looks whose leader is being chosen."""


def _address(broker: Any) -> str:
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host}:{broker.port}"
