"""The ends of the topics that a worker reads, and the check that they still are the topics that it began with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from pgsluice.shared.errors import HistoryError, PgsluiceError, TerminalError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.shared.wire.kafka_range import TopicEnds
from pgsluice.worker.sinks.kafka.cluster_brokers import ClusterBrokers
from pgsluice.worker.sinks.kafka.kafka_client import ANSWER_DEADLINE_S, SETTINGS_UNSEEN, UNKNOWN_TOPIC, Complaints

_BEGIN_ANEW = "begin a new group, with an empty target"


class SourceTopics:
    """Blocking calls. Raises TransientError when the brokers do not answer."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._complaints = Complaints()
        self._brokers = ClusterBrokers(cluster, self._complaints)

    def cluster_id(self) -> str:
        return str(self._brokers.metadata().cluster_id)

    def described(self, topics: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Returns the ids and numbers of partitions of existing topics. Raises TerminalError when a broker has come
        that must not be connected to."""
        self._brokers.judge()
        found: dict[str, tuple[str, int]] = {}
        for topic, future in self._brokers.client.describe_topics(TopicCollection(list(topics))).items():
            with _named(self._complaints, topic):
                about = _description(future)
            if about is not None:
                found[topic] = str(about.topic_id), len(about.partitions)
        return found

    def describe(self, topic: str) -> tuple[str, int]:
        """Like ``described``. Raises TerminalError when the topic does not exist."""
        found = self.described([topic])
        if topic not in found:
            raise missing_error(topic)
        return found[topic]

    def first_offsets(self, topic: str, partitions: int) -> tuple[int, ...]:
        return self._offsets(topic, partitions, OffsetSpec.earliest())

    def stable_offsets(self, topic: str, partitions: int) -> tuple[int, ...]:
        """Returns the offset after the last record of each partition that no open transaction can still abort."""
        return self._offsets(topic, partitions, OffsetSpec.latest())

    def check_keeps_all(self, topic: str) -> None:
        """Raises TerminalError for a topic that is compacted. One whose settings this user may not see is not judged."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        with _named(self._complaints, topic):
            try:
                found: Mapping[str, Any] = self._brokers.client.describe_configs([resource])[resource].result(ANSWER_DEADLINE_S)
            except KafkaException as failure:
                if failure.args[0].code() in SETTINGS_UNSEEN:
                    return
                raise
        if "compact" in str(found["cleanup.policy"].value):
            raise TerminalError(
                f"topic {topic} is compacted: it forgets changes that rows were made of",
                "set its cleanup.policy to delete before anything is written to it",
            )

    def _offsets(self, topic: str, partitions: int, which: OffsetSpec) -> tuple[int, ...]:
        wanted = {TopicPartition(topic, partition): which for partition in range(partitions)}
        asked = self._brokers.client.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        with _named(self._complaints, topic):
            return tuple(asked[place].result(ANSWER_DEADLINE_S).offset for place in wanted)


def _description(future: Any) -> Any:
    """Returns the future's result; None when there is no such topic."""
    try:
        return future.result(ANSWER_DEADLINE_S)
    except KafkaException as failure:
        if failure.args[0].code() in UNKNOWN_TOPIC:
            return None
        raise


@contextmanager
def _named(complaints: Complaints, topic: str) -> Iterator[None]:
    """Translates errors of the client about a topic."""
    with complaints.translated(topic):
        try:
            yield
        except KafkaException as failure:
            raise error_of(complaints, failure.args[0], topic) from None


def error_of(complaints: Complaints, error: KafkaError, topic: str) -> PgsluiceError:
    return missing_error(topic) if error.code() in UNKNOWN_TOPIC else complaints.of(error, topic)


def missing_error(topic: str) -> TerminalError:
    """Returns the error for a topic that existed before."""
    return TerminalError(
        f"there is no topic {topic} in Kafka", f"it was removed, and its records that were not applied are lost: {_BEGIN_ANEW}"
    )


def check_same_topic(topic: str, known: TopicEnds, found: tuple[str, int]) -> None:
    """Raises HistoryError when the topic is not the one that was read before, or its keys lie elsewhere now."""
    topic_id, partitions = found
    if topic_id != known.topic_id:
        raise HistoryError(f"topic {topic} was removed and created again: its offsets mean other records now", _BEGIN_ANEW)
    if partitions != len(known.offsets):
        raise HistoryError(
            f"topic {topic} has {partitions} partitions now and had {len(known.offsets)}: changes of one key may lie in two of "
            "them, in no order",
            _BEGIN_ANEW + " and a topic whose changes were all written with that number",
        )


def check_goes_on(topic: str, known: TopicEnds, offsets: tuple[int, ...]) -> None:
    """Raises HistoryError when a partition ends before what was indexed: it lost records."""
    for partition, (before, now) in enumerate(zip(known.offsets, offsets, strict=True)):
        if now < before:
            raise HistoryError(
                f"partition {partition} of topic {topic} ends at offset {now}, and records up to {before} are known: Kafka lost "
                "some",
                _BEGIN_ANEW,
            )
