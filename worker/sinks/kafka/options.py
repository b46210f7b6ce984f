"""The options of the Kafka sink."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.worker.sinks.kafka.topic_pattern import DEFAULT_TOPIC, KEY_FIELD, KeyPattern, TopicPattern, check_topic
from pgsluice.worker.sinks.lines.options import FORMAT, LineSettings, foreign_format_problems
from pgsluice.worker.sinks.sink_registry import SinkKind

OPTIONS = "kafka"
"""Prefix of the names of the options."""

CHANGES = "pgsluice"
"""The format of records that a worker can read again."""


@settings
class KafkaSinkSettings:
    """``lines`` determines a record's value, unless ``format`` is CHANGES. ``topic`` and ``key`` are patterns.
    ``partitions`` and ``replication_factor`` of topics that are made are 0 for the brokers' own defaults."""

    lines: LineSettings = part(LineSettings)
    format: str = read(FORMAT)
    cluster: KafkaSettings = part(KafkaSettings)
    topic: str = read(
        Option(
            "kafka-topic",
            Kind.TEXT,
            "Topic of each record; {schema} and {table} are escaped to characters that Kafka accepts",
            "shop.{table}",
            DEFAULT_TOPIC,
        )
    )
    key: str = read(
        Option(
            "kafka-key",
            Kind.TEXT,
            "Key of each record, which selects its partition: {key} is the row's key as JSON, {schema} and {table} are names",
            "{table}:{key}",
            KEY_FIELD,
        )
    )
    tombstones: bool = read(
        Option(
            "kafka-tombstones",
            Kind.SWITCH,
            "Write a record with the key and no value after each delete, for compacted topics",
            "true",
            "false",
        )
    )
    headers: bool = read(
        Option("kafka-headers", Kind.SWITCH, "Describe the change in the headers of each record", "false", "true")
    )
    transactions: bool = read(
        Option(
            "kafka-transactions",
            Kind.SWITCH,
            "Deliver exactly once, with Kafka transactions; false: at least once, with the position in NATS",
            "false",
            "true",
        )
    )
    transaction_timeout_s: float = read(
        Option(
            "kafka-transaction-timeout",
            Kind.DURATION,
            "Longest time that the brokers keep a transaction open without a sign of the worker",
            "15m",
            "5m",
            minimum=1,
            maximum=900,
        )
    )
    position_topic: str = read(
        Option(
            "kafka-position-topic", Kind.TEXT, "Compacted topic that stores the position", "shop-positions", "pgsluice-positions"
        )
    )
    create_topics: bool = read(Option("kafka-create-topics", Kind.SWITCH, "Create missing topics", "true", "false"))
    partitions: int = read(
        Option(
            "kafka-partitions",
            Kind.NUMBER,
            "Partitions of created topics (default: set by the brokers)",
            "12",
            minimum=1,
            maximum=10_000,
        )
    )
    replication_factor: int = read(
        Option(
            "kafka-replication-factor",
            Kind.NUMBER,
            "Replication factor of created topics, including kafka-position-topic (default: set by the brokers)",
            "3",
            minimum=1,
            maximum=100,
        )
    )
    max_record_bytes: int = read(
        Option(
            "kafka-max-record-bytes",
            Kind.SIZE,
            "Largest record that the brokers accept; a larger one becomes a dead letter",
            "10MB",
            "1MB",
            minimum=1000,
            maximum=1_000_000_000,
        )
    )
    compression: str = read(
        Option(
            "kafka-compression",
            Kind.TEXT,
            "Compression of records",
            "zstd",
            "lz4",
            choices=("none", "gzip", "snappy", "lz4", "zstd"),
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        yield from foreign_format_problems(values, own="pgsluice")
        try:
            TopicPattern.parse(values.text("kafka-topic"))
            KeyPattern.parse(values.text("kafka-key"))
            check_topic(values.text("kafka-position-topic"), "kafka-position-topic")
        except UsageError as error:
            yield error


def _check(settings: KafkaSinkSettings) -> None:
    from pgsluice.worker.sinks.kafka.broker_access import check_cluster

    if settings.tombstones and not KeyPattern.parse(settings.key).names_row:
        raise UsageError("kafka-tombstones would remove every row of a table", "have kafka-key hold {key}")
    check_cluster(settings.cluster)


SINK = SinkKind(
    settings=KafkaSinkSettings,
    sink="pgsluice.worker.sinks.kafka.sink:KafkaSink",
    findings="pgsluice.worker.sinks.kafka.findings:find",
    summary="Produce the changes to Kafka topics.",
    help="Produce each change as a record to Kafka topics, in order for each key, in whole source transactions and "
    "exactly once. Values are JSON, without a schema registry.",
    check=_check,
)
