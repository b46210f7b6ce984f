"""A worker lives on while its topics grow, are compacted, or while brokers slow it down: readers of what is committed see each
transaction once, in order, as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import followed_accounts
from pgsluice.worker.sinks.kafka import cluster_brokers, record_producer
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import KafkaDestination, TopicReader
from tests.worker.sinks.kafka.committed_history import KEYS, CommittedHistory, transactions

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

ANSWER_S = 60.0
COMPACTED_AT_ONCE = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
BYTE_RATE = 100_000


@pytest.fixture(scope="module")
def broker() -> Iterator[RealKafka]:
    """One that compacts without waiting, and whose quotas a test may set."""
    with RealKafka({"log.cleaner.backoff.ms": "100"}) as broker:
        yield broker


@pytest.mark.parametrize("is_restarted", [False, True])
def test_topics_that_get_more_partitions_under_a_worker_keep_each_partition_in_order(
    broker: RealKafka, group: str, is_restarted: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started again writes to the new ones at once, one that lives on within minutes."""
    monkeypatch.setattr(cluster_brokers, "JUDGED_FOR_S", 0.0)
    destination = KafkaDestination(broker, group, partitions=2)
    sink = opened(destination)
    apply_all(sink, range(1, 11))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [destination.reader(table).topic for table in ("events", "accounts")]
    for future in admin.create_partitions([NewPartitions(topic, 5) for topic in topics]).values():
        future.result(ANSWER_S)
    apply_all(sink, range(11, 21))
    if is_restarted:
        sink.close()
        sink = opened(destination)
    apply_all(sink, range(21, 61))
    sink.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(60)
    used = {record.partition for record in destination.reader("accounts").records()}
    assert max(used) > 1 if is_restarted else used <= {0, 1}
    assert caplog.text.count("a topic has more partitions than before") == 2


def test_topics_that_are_compacted_under_a_worker_keep_its_position_and_the_newest_of_each_key(
    broker: RealKafka, group: str
) -> None:
    destination = KafkaDestination(broker, group)
    accounts, positions = destination.reader("accounts"), TopicReader(broker, destination.settings().position_topic)
    ClusterTopics(destination.settings()).make(accounts.topic, 1, {"cleanup.policy": "compact"} | COMPACTED_AT_ONCE)
    sink, last = opened(destination), 0
    alter(broker, positions.topic, COMPACTED_AT_ONCE)

    def is_compacted() -> bool:
        nonlocal last
        last += 1
        apply_all(sink, [last])
        return len(positions.records()) < last // 2 and len(accounts.records()) < last

    wait_until(is_compacted, what="compaction of both topics", interval_s=0.2)
    for _ in range(3):
        sink.close()
        sink = destination.new_sink()
        assert sink.open().sequence == last
        last += 1
        apply_all(sink, [last])
    sink.close()
    assert CommittedHistory.read(destination, ("events",)) == CommittedHistory.whole(last)
    newest = {(number + n) % KEYS: str(number) for number in range(1, last + 1) for n in range(2)}
    assert followed_accounts(accounts.values()) == newest


def test_a_worker_that_a_quota_slows_down_waits_for_its_turn(
    broker: RealKafka, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than it would wait for brokers that do not answer."""
    monkeypatch.setattr(record_producer, "DELIVERY_DEADLINE_S", 4.0)
    destination = KafkaDestination(broker, group, compression="none")
    sink = opened(destination)
    apply_all(sink, [1])
    with produced_at_most(broker, BYTE_RATE):
        apply(sink, transactions(range(2, 12), note=os.urandom(BYTE_RATE // 2).hex().encode()))
    apply_all(sink, [12])
    sink.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(12)


def opened(destination: KafkaDestination) -> KafkaSink:
    sink = destination.new_sink()
    sink.open()
    return sink


def apply_all(sink: KafkaSink, numbers: Iterable[int]) -> None:
    """Each as a batch of its own."""
    for number in numbers:
        apply(sink, transactions([number]))


def alter(broker: RealKafka, topic: str, config: Mapping[str, str]) -> None:
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(ANSWER_S)


@contextmanager
def produced_at_most(broker: RealKafka, bytes_a_second: int) -> Iterator[None]:
    """Has the broker slow the worker down."""
    client = "--entity-type", "clients", "--entity-name", "pgsluice"
    broker.configure("--add-config", f"producer_byte_rate={bytes_a_second}", *client)
    try:
        yield
    finally:
        broker.configure("--delete-config", "producer_byte_rate", *client)
