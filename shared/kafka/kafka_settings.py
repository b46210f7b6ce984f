"""The settings for Kafka: as a sink's destination, and with the prefix ``source-`` as a worker's source."""

from __future__ import annotations

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind, parse_address, split_address
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.config.values import Values

NO_SASL = "none"
SOURCE_KAFKA = "kafka"


def _brokers(addresses: tuple[str, ...]) -> tuple[str, ...]:
    for address in addresses:
        if not split_address(parse_address(address))[1]:
            raise ValueError("holds an address without a port")
    return addresses


@settings
class KafkaSettings:
    """``sasl`` is NO_SASL or a mechanism; the files are "" for none."""

    brokers: tuple[str, ...] = read(
        Option(
            "kafka-brokers",
            Kind.LIST,
            "Bootstrap brokers of the Kafka cluster",
            "kafka-1.example.com:9092,kafka-2.example.com:9092",
            required=True,
            convert=_brokers,
        )
    )
    tls: bool = read(Option("kafka-tls", Kind.SWITCH, "Connect to the brokers with TLS", "true", "false"))
    ca_file: str = read(
        Option(
            "kafka-ca",
            Kind.FILE,
            "CA certificates for the brokers (default: those of the machine)",
            "/etc/pgsluice/kafka-ca.pem",
        )
    )
    cert_file: str = read(Option("kafka-client-cert", Kind.FILE, "Client certificate for the brokers", "/etc/pgsluice/kafka.crt"))
    key_file: str = read(Option("kafka-client-key", Kind.FILE, "Private key of kafka-client-cert", "/etc/pgsluice/kafka.key"))
    sasl: str = read(
        Option(
            "kafka-sasl",
            Kind.TEXT,
            "SASL mechanism for authentication at the brokers",
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
    is_insecure: bool = read(
        Option(
            "kafka-insecure",
            Kind.SWITCH,
            "Allow kafka-sasl: plain to send the password to another machine without TLS",
            "true",
            "false",
        )
    )
    allow_hosts: tuple[str, ...] = read(
        Option(
            "kafka-allow-hosts",
            Kind.LIST,
            "Allowed hosts for connections: names, addresses, networks (default: public addresses only)",
            "kafka-1.example.com,10.1.0.0/16",
        )
    )


def reads_kafka(values: Values) -> bool:
    """Returns whether the worker's changes come from Kafka."""
    return values.text("worker-source") == SOURCE_KAFKA


@settings
class KafkaSourceSettings:
    """``topics`` hold records of the format pgsluice. ``stream`` is for the index, and for the state bucket."""

    cluster: KafkaSettings = part(KafkaSettings, prefix="source-", database="source")
    topics: tuple[str, ...] = read(
        Option(
            "source-topics",
            Kind.LIST,
            "Kafka topics to read with worker-source: kafka, written in format: pgsluice",
            "shop.orders,shop.customers",
            required=True,
        )
    )
    stream: StreamSettings = part(StreamSettings)
