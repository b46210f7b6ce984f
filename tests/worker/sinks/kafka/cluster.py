"""Topics as their readers see them, and sinks that produce to them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.testing.batch import Batch, apply
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from tests.servers.kafka import RealKafka
from tests.servers.kafka_cluster import KafkaCluster
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import NO_NATS, worker_settings

READ_DEADLINE_S = 60.0


def kafka_settings(broker: RealKafka | KafkaCluster, group: str, **changed: Any) -> KafkaSinkSettings:
    return kafka_settings_of(broker.bootstrap, group, **changed)


def kafka_settings_of(bootstrap: str, group: str, **changed: Any) -> KafkaSinkSettings:
    settings: dict[str, Any] = {
        "lines": line_settings(),
        "format": "json",
        "topic": f"{group}.{{schema}}.{{table}}",
        "key": "{key}",
        "tombstones": False,
        "headers": True,
        "transactions": True,
        "transaction_timeout_s": 60.0,
        "position_topic": f"{group}-positions",
        "create_topics": True,
        "partitions": 1,
        "replication_factor": 1,
        "max_record_bytes": 1_000_000,
        "compression": "lz4",
    }
    own = {name: value for name, value in changed.items() if name in settings}
    cluster = {name: value for name, value in changed.items() if name not in settings}
    return KafkaSinkSettings(cluster=cluster_settings(bootstrap, **cluster), **settings | own)


def cluster_settings(bootstrap: str, **changed: Any) -> KafkaSettings:
    settings: dict[str, Any] = {
        "brokers": (bootstrap,),
        "tls": False,
        "ca_file": "",
        "cert_file": "",
        "key_file": "",
        "sasl": "none",
        "user": "",
        "password": "",
        "is_insecure": False,
        "allow_hosts": ("127.0.0.1",),
    }
    return KafkaSettings(**settings | changed)


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


class TopicReader:
    """What is committed in a topic by now, partition after partition."""

    def __init__(self, broker: RealKafka | KafkaCluster, topic: str) -> None:
        self._broker = broker
        self.topic = topic

    def records(self, *, committed: bool = True, waits: bool = True) -> list[KafkaRecord]:
        """``committed``: of transactions that are; else of all. Empty while there is no topic. An open transaction is waited
        for, unless it is not to be."""
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap, "log_level": 0})
        found = admin.list_topics(timeout=READ_DEADLINE_S).topics.get(self.topic)
        if found is None:
            return []
        records: list[KafkaRecord] = []
        for partition in sorted(found.partitions):
            place = TopicPartition(self.topic, partition)
            end = admin.list_offsets({place: OffsetSpec.latest()})[place].result(READ_DEADLINE_S).offset
            isolation = "read_committed" if committed else "read_uncommitted"
            records += self._of_partition(partition, end if waits else 0, isolation)
        return records

    def values(self) -> list[Any]:
        """As JSON, without tombstones."""
        return [json.loads(record.value) for record in self.records() if record.value is not None]

    def _of_partition(self, partition: int, end: int, isolation: str) -> Iterator[KafkaRecord]:
        settings = {
            "bootstrap.servers": self._broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        behaviour = {"isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings | behaviour)
        deadline = time.monotonic() + READ_DEADLINE_S
        try:
            consumer.assign([TopicPartition(self.topic, partition, 0)])
            while time.monotonic() < deadline:
                record = consumer.poll(0.5)
                if record is None:
                    continue
                error = record.error()
                if error is None:
                    headers = {name: value.decode() for name, value in record.headers() or []}
                    yield KafkaRecord(partition, record.offset(), record.key(), record.value(), headers)
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise AssertionError(error)
                elif record.offset() >= end:
                    return
            raise AssertionError(f"{self.topic} was not read to its end")
        finally:
            consumer.close()


@contextmanager
def open_transaction(broker: RealKafka | KafkaCluster, topic: str) -> Iterator[None]:
    """Another producer's, with a record in partition 0; it is given up."""
    other = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-other"})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(topic, b"{}", b"other", 0)
    other.flush(60)
    try:
        yield
    finally:
        other.abort_transaction(60)


class KafkaDestination:
    def __init__(self, broker: RealKafka | KafkaCluster, group: str, nats: NatsSettings = NO_NATS, **changed: Any) -> None:
        self.broker = broker
        self.group = group
        self._nats = nats
        self.changed = changed
        """Settings that are not as ``kafka_settings`` has them."""

    def settings(self) -> KafkaSinkSettings:
        return kafka_settings(self.broker, self.group, **self.changed)

    def new_sink(self, name: str = "sink") -> KafkaSink:
        return KafkaSink(worker_settings(self.group, self._nats, name), self.settings())

    def reader(self, table: str) -> TopicReader:
        """Of a table in the schema public."""
        return TopicReader(self.broker, f"{self.group}.public.{table}")


def apply_patiently(sink: KafkaSink, changes: Batch) -> None:
    """As the worker does: a batch that may be applied later is applied again, until it is or cannot be."""
    for _ in range(10):
        with suppress(TransientError):
            apply(sink, changes)
            return
    pytest.fail("the batch was put off ten times")
