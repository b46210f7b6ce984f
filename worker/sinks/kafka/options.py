"""What the Kafka sink is told."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind, parse_address, split_address
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.kafka.topic_pattern import DEFAULT_TOPIC, KEY_FIELD, KeyPattern, TopicPattern, check_topic
from pgsluice.worker.sinks.lines.options import LineSettings, parquet_problems
from pgsluice.worker.sinks.sink_registry import SinkKind

OPTIONS = "kafka"
"""What the names of the options begin with."""

NO_SASL = "none"


def _brokers(addresses: tuple[str, ...]) -> tuple[str, ...]:
    for address in addresses:
        if not split_address(parse_address(address))[1]:
            raise ValueError("holds an address without a port")
    return addresses


@settings
class KafkaSinkSettings:
    """``lines`` says what a record's value holds. ``topic`` and ``key`` are patterns. ``partitions`` and ``replication_factor``
    of topics that are made are 0 for the brokers' own defaults. ``sasl`` is "none" or a mechanism; the files are "" for none."""

    lines: LineSettings = part(LineSettings)
    brokers: tuple[str, ...] = read(
        Option(
            "kafka-brokers",
            Kind.LIST,
            "Brokers of the Kafka cluster that tell of the others",
            "kafka-1.example.com:9092,kafka-2.example.com:9092",
            required=True,
            convert=_brokers,
        )
    )
    topic: str = read(
        Option(
            "kafka-topic",
            Kind.TEXT,
            "Topic of each record; {schema} and {table} are escaped within what Kafka takes",
            "shop.{table}",
            DEFAULT_TOPIC,
        )
    )
    key: str = read(
        Option(
            "kafka-key",
            Kind.TEXT,
            "Key of each record, which chooses its partition: {key} is the row's as JSON, {schema} and {table} are names",
            "{table}:{key}",
            KEY_FIELD,
        )
    )
    tombstones: bool = read(
        Option(
            "kafka-tombstones",
            Kind.SWITCH,
            "Behind each delete a record with its key and no value, for topics that are compacted",
            "true",
            "false",
        )
    )
    headers: bool = read(
        Option("kafka-headers", Kind.SWITCH, "Say of each record in its headers what change it is of", "false", "true")
    )
    transactions: bool = read(
        Option(
            "kafka-transactions",
            Kind.SWITCH,
            "Exactly once, by Kafka's transactions; false: at least once, with the position in NATS",
            "false",
            "true",
        )
    )
    transaction_timeout_s: float = read(
        Option(
            "kafka-transaction-timeout",
            Kind.DURATION,
            "How long the brokers keep a transaction open of which they hear nothing more",
            "15m",
            "5m",
            minimum=1,
            maximum=900,
        )
    )
    position_topic: str = read(
        Option(
            "kafka-position-topic", Kind.TEXT, "Compacted topic that holds the position", "shop-positions", "pgsluice-positions"
        )
    )
    create_topics: bool = read(Option("kafka-create-topics", Kind.SWITCH, "Make topics that are missing", "true", "false"))
    partitions: int = read(
        Option(
            "kafka-partitions",
            Kind.NUMBER,
            "Partitions of topics that are made (default: the brokers' own)",
            "12",
            minimum=1,
            maximum=10_000,
        )
    )
    replication_factor: int = read(
        Option(
            "kafka-replication-factor",
            Kind.NUMBER,
            "Copies of topics that are made, that of the position among them (default: the brokers' own)",
            "3",
            minimum=1,
            maximum=100,
        )
    )
    max_record_bytes: int = read(
        Option(
            "kafka-max-record-bytes",
            Kind.SIZE,
            "Largest record that the brokers take; a larger one becomes a dead letter",
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
            "How records are compressed",
            "zstd",
            "lz4",
            choices=("none", "gzip", "snappy", "lz4", "zstd"),
        )
    )
    tls: bool = read(Option("kafka-tls", Kind.SWITCH, "Reach the brokers by TLS", "true", "false"))
    ca_file: str = read(
        Option(
            "kafka-ca",
            Kind.FILE,
            "Certificates that vouch for the brokers (default: those that the machine trusts)",
            "/etc/pgsluice/kafka-ca.pem",
        )
    )
    cert_file: str = read(
        Option("kafka-client-cert", Kind.FILE, "Certificate that the worker shows to the brokers", "/etc/pgsluice/kafka.crt")
    )
    key_file: str = read(Option("kafka-client-key", Kind.FILE, "Private key of kafka-client-cert", "/etc/pgsluice/kafka.key"))
    sasl: str = read(
        Option(
            "kafka-sasl",
            Kind.TEXT,
            "How the worker says who it is",
            "scram-sha-512",
            NO_SASL,
            choices=(NO_SASL, "plain", "scram-sha-256", "scram-sha-512"),
        )
    )
    user: str = read(Option("kafka-user", Kind.TEXT, "User for kafka-sasl", "pgsluice"))
    password: str = read(
        Option(
            "kafka-password",
            Kind.TEXT,
            "Password of kafka-user",
            "${PGSLUICE_KAFKA_PASSWORD:-}",
            secret=True,
            in_file="the password",
        )
    )
    allow_hosts: tuple[str, ...] = read(
        Option(
            "kafka-allow-hosts",
            Kind.LIST,
            "Hosts that may be connected to: names, addresses, networks; none but public addresses when it is not given",
            "kafka-1.example.com,10.1.0.0/16",
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        yield from parquet_problems(values)
        try:
            TopicPattern.parse(values.text("kafka-topic"))
            KeyPattern.parse(values.text("kafka-key"))
            check_topic(values.text("kafka-position-topic"), "kafka-position-topic")
        except UsageError as error:
            yield error


def _check(settings: KafkaSinkSettings) -> None:
    from pgsluice.worker.sinks.kafka.broker_access import check_brokers

    is_named, has_sasl = bool(settings.user or settings.password), settings.sasl != NO_SASL
    if has_sasl and not (settings.user and settings.password):
        raise UsageError(f"kafka-sasl: {settings.sasl} needs kafka-user and kafka-password", "give both")
    if is_named and not has_sasl:
        raise UsageError("kafka-user and kafka-password have no meaning with kafka-sasl: none", "write kafka-sasl: scram-sha-512")
    if bool(settings.cert_file) is not bool(settings.key_file):
        raise UsageError("of kafka-client-cert and kafka-client-key only one is given", "give both or none")
    if (settings.ca_file or settings.cert_file) and not settings.tls:
        raise UsageError("kafka-ca and kafka-client-cert have no meaning without TLS", "write kafka-tls: true, or remove them")
    if settings.tombstones and not KeyPattern.parse(settings.key).names_row:
        raise UsageError("kafka-tombstones would remove every row of a table", "have kafka-key hold {key}")
    check_brokers(settings.brokers, settings.allow_hosts)


SINK = SinkKind(
    settings=KafkaSinkSettings,
    sink="pgsluice.worker.sinks.kafka.sink:KafkaSink",
    findings="pgsluice.worker.sinks.kafka.findings:find",
    summary="Produce the changes to topics of Kafka.",
    help="Produce each change as a record to topics of Kafka, each key's in order, source transactions whole and exactly once.",
    check=_check,
)
