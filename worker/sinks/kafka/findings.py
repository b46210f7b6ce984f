"""Findings of ``pgsluice check`` about a Kafka cluster: its reachability, user, and topics. Nothing is created."""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.kafka.kafka_settings import NO_SASL
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics, collision_error, collisions
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings
from pgsluice.worker.sinks.kafka.position_topic import check_compacted
from pgsluice.worker.sinks.kafka.topic_pattern import TopicPattern

MOST_NAMED = 5


def find(worker: WorkerSettings, settings: KafkaSinkSettings, incoming: Incoming) -> list[Finding]:
    found = Findings(Subject.SINK)
    if not settings.transactions:
        fact = "kafka-transactions is false: after a crash records can come twice, and readers can see half a transaction"
        found.note("kafka-at-least-once", Severity.INFO, fact, "leave it out, unless the brokers have no transactions")
    if not settings.cluster.tls:
        what = "rows" if settings.cluster.sasl == NO_SASL else "rows and credentials"
        fact = f"Kafka is reached without TLS: {what} can be read on the way"
        found.note("kafka-plain", Severity.WARNING, fact, "write kafka-tls: true")
    pattern = TopicPattern.parse(settings.topic)
    found.take(pattern.place_names(settings.position_topic).findings(incoming.tables or ()))
    wanted = sorted({pattern.topic(table.schema, table.name) for table in incoming.tables or ()})
    try:
        topics = ClusterTopics(settings)
        _look_at_topics(topics, topics.names(), settings, wanted, found)
    except PgsluiceError as error:
        found.take([Finding.of(error, "kafka-brokers", Subject.SINK)])
    return list(found)


def _look_at_topics(
    topics: ClusterTopics, names: set[str], settings: KafkaSinkSettings, wanted: Sequence[str], found: Findings
) -> None:
    if settings.transactions and settings.position_topic in names:
        with found.looking("kafka-position-topic"):
            check_compacted(topics, settings.position_topic)
    for topic, other in collisions(wanted, names.difference(wanted)):
        found.take([Finding.of(collision_error(topic, other), "kafka-topic-collision", Subject.SINK)])
    missing = [topic for topic in wanted if topic not in names]
    if missing and not settings.create_topics:
        listed = ", ".join(missing[:MOST_NAMED]) + (", …" if len(missing) > MOST_NAMED else "")
        fact = f"{len(missing)} topics are not there: {listed}"
        found.note("kafka-topics", Severity.WARNING, fact, "make them, or write kafka-create-topics: true")
    for topic in wanted:
        limit = topics.config(topic).get("max.message.bytes", "") if topic in names else ""
        if limit.isdigit() and int(limit) < settings.max_record_bytes:
            fact = f"topic {topic} takes {limit} bytes at a time, less than kafka-max-record-bytes ({settings.max_record_bytes})"
            found.note(
                "kafka-record-size", Severity.WARNING, fact, "raise its max.message.bytes, or lower kafka-max-record-bytes"
            )
