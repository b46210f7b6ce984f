"""What readers of topics find: topics, keys, headers, tombstones; what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.preflight.finding import Severity
from pgsluice.shared.wire.table import Table
from pgsluice.testing.batch import STREAM_CREATED, Batch, apply, apply_copied
from pgsluice.testing.changes_builder import delete, insert, message, message_of, table, transaction, truncate, update
from pgsluice.testing.tried_batches import ACCOUNTS, EVENTS, LARGE_NOTE, batch, copied_batch, position
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN, Incoming
from pgsluice.worker.sinks.kafka import position_topic
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.findings import find
from tests.servers.kafka import RealKafka
from tests.worker.sinks.kafka.cluster import KafkaDestination, TopicReader, apply_patiently
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import worker_settings

pytestmark = pytest.mark.kafka


def applied(broker: RealKafka, group: str, changes: Batch, **changed: Any) -> KafkaDestination:
    destination = KafkaDestination(broker, group, **changed)
    sink = destination.new_sink()
    sink.open()
    apply(sink, changes)
    sink.close()
    return destination


def test_a_record_says_what_it_is_of(real_kafka: RealKafka, group: str) -> None:
    changes: list[Any] = [
        insert(ACCOUNTS, b"7", b"a"),
        update(ACCOUNTS, b"7", b"b"),
        delete(ACCOUNTS, b"7", None),
        truncate(ACCOUNTS),
    ]
    destination = applied(real_kafka, group, [[message(1, *changes)]])
    records = destination.reader("accounts").records()
    assert [record.key for record in records] == [b'{"id":7}'] * 3 + [None]
    assert [record.headers["pgsluice-operation"] for record in records] == ["insert", "update", "delete", "truncate"]
    assert [record.headers["pgsluice-position"] for record in records] == [f"0/3E8:{n}" for n in range(1, 5)]
    assert {record.headers["pgsluice-lsn"] for record in records} == {"0/3E8"}
    assert {record.headers["pgsluice-committed-at"] for record in records} == {"2000-01-01T00:00:00.000001Z"}


def test_a_key_has_one_partition_and_its_order_there(real_kafka: RealKafka, group: str) -> None:
    changes = [update(ACCOUNTS, b"%d" % (n % 10), b"%d" % n) for n in range(200)]
    destination = applied(real_kafka, group, [[message(1, *changes)]], partitions=4)
    records = destination.reader("accounts").records()
    assert len(records) == 200
    assert len({record.partition for record in records}) > 1
    for number in range(10):
        of_key = [record for record in records if record.key == b'{"id":%d}' % number]
        assert len({record.partition for record in of_key}) == 1
        ordinals = [int(record.headers["pgsluice-position"].rpartition(":")[2]) for record in of_key]
        assert ordinals == list(range(number + 1, 201, 10))


def test_rows_without_a_key_keep_their_order(real_kafka: RealKafka, group: str) -> None:
    destination = applied(real_kafka, group, batch(range(1, 50)), partitions=3)
    records = destination.reader("events").records()
    assert {(record.partition, record.key) for record in records} == {(0, None)}


@pytest.mark.parametrize("shape", ["json", "debezium"])
def test_tombstones_follow_deletes_and_keys_that_are_left(real_kafka: RealKafka, group: str, shape: str) -> None:
    changes = [delete(ACCOUNTS, b"1", None), update(ACCOUNTS, b"4", b"f", old=(b"3", None))]
    settings = {"tombstones": True, "lines": line_settings(shape=shape)}
    destination = applied(real_kafka, group, [[message(1, *changes)]], **settings)
    found = [(record.key, record.value is None) for record in destination.reader("accounts").records()]
    told = [(b'{"id":3}', False)] if shape == "debezium" else []
    assert found == [(b'{"id":1}', False), (b'{"id":1}', True), *told, (b'{"id":3}', True), (b'{"id":4}', False)]


def test_a_topic_that_was_just_made_gets_every_record(real_kafka: RealKafka, group: str) -> None:
    """Its first request may be refused, because its leader is not known yet."""
    tables = [table(f"public.made_{n}", "id bigint", "note text") for n in range(12)]
    changes = [insert(each, b"%d" % n, LARGE_NOTE) for each in tables for n in range(5)]
    applied(real_kafka, group, [[message(1, *changes)]])
    for each in tables:
        keys = [record.key for record in TopicReader(real_kafka, f"{group}.public.{each.name}").records()]
        assert keys == [b'{"id":%d}' % n for n in range(5)]


def test_dead_letters_are_replayed_beside_the_position(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([2, 3]))
    letter = message_of(7, transaction(1000, insert(EVENTS, b"1", b"n"), first_ordinal=2))
    replay = destination.new_sink(name="sink.replay")
    replay.open()
    for _ in range(2):
        assert apply(replay, [[letter]], "dead letters").sequence == 7
    replay.close()
    assert apply(sink, batch([4])) == position(4)
    sink.close()
    assert [line["after"]["id"] for line in destination.reader("events").values()] == [4, 5, 6, 7, 1, 8, 9]


def test_what_the_topic_does_not_take_is_told_and_nothing_is_left(real_kafka: RealKafka, group: str) -> None:
    """A topic of somebody else's may take less than the settings say."""
    destination = KafkaDestination(real_kafka, group, max_record_bytes=2_000_000, compression="none")
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))
    with pytest.raises(TerminalError, match="does not take a record as large"):
        apply(sink, batch([2], note=b"x" * 1_500_000))
    assert apply(sink, batch([2])) == position(2)
    sink.close()
    assert len(destination.reader("events").records()) == 4
    found = {(sample.metric.name, *sample.labels): sample for sample in sink.collect()}
    assert found["pgsluice_kafka_transactions_total", "committed"].value == 2
    assert found["pgsluice_kafka_transactions_total", "given_up"].value == 1
    assert found["pgsluice_kafka_records_total",].value == 4
    took = found["pgsluice_kafka_transaction_seconds",].histogram
    assert took is not None
    assert (sum(took.counts), took.sum > 0) == (2, True)


def test_what_has_no_key_is_not_for_a_topic_that_is_compacted(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group, tombstones=True)
    name = destination.reader("accounts").topic
    ClusterTopics(destination.settings()).make(name, 1, {"cleanup.policy": "compact"})
    sink = destination.new_sink()
    sink.open()
    apply(sink, [[message(1, insert(ACCOUNTS, b"7", b"a"), delete(ACCOUNTS, b"7", None))]])
    with pytest.raises(TerminalError, match=f"topic {name} refuses a record, as compacted ones do without a key"):
        apply(sink, [[message(2, insert(ACCOUNTS, b"8", b"a"), truncate(ACCOUNTS))]])
    sink.close()
    assert len(destination.reader("accounts").records()) == 3


def test_a_table_that_comes_to_the_topic_of_positions_is_refused(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group, topic=f"{group}-{{table}}", position_topic=f"{group}-events")
    sink = destination.new_sink()
    sink.open()
    with pytest.raises(TerminalError, match="where positions are"):
        apply(sink, batch([1]))
    sink.close()


def test_a_check_tells_of_topics_and_access(real_kafka: RealKafka, group: str) -> None:
    destination = applied(real_kafka, group, batch([1]))
    worker, settings = worker_settings(group), replace(destination.settings(), create_topics=False)
    incoming = Incoming(tables=[EVENTS, ACCOUNTS])
    found = {each.check: each for each in find(worker, settings, incoming)}
    assert sorted(found) == ["kafka-plain", "kafka-topics"]
    assert f"1 topics are not there: {group}.public.accounts" in found["kafka-topics"].fact
    forgetful = replace(settings, position_topic=f"{group}.public.events")
    assert "kafka-position-topic" in {each.check for each in find(worker, forgetful, NOTHING_KNOWN)}
    large = replace(settings, max_record_bytes=5_000_000)
    assert "kafka-record-size" in {each.check for each in find(worker, large, incoming)}
    stranger = replace(settings, cluster=replace(settings.cluster, allow_hosts=("10.0.0.1",)))
    assert "kafka-brokers" in {each.check for each in find(worker, stranger, NOTHING_KNOWN)}


def test_batches_become_as_small_as_a_topic_takes(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    topic = destination.reader("accounts").topic
    new = NewTopic(topic, 1, 1, config={"max.message.bytes": "5000"})
    admin.create_topics([new])[topic].result(60)
    changes = [insert(ACCOUNTS, b"%d" % n, os.urandom(200).hex().encode()) for n in range(300)]
    sink = destination.new_sink()
    sink.open()
    apply_patiently(sink, [[message(1, *changes)]])
    assert len(destination.reader("accounts").records()) == 300
    with pytest.raises(TerminalError, match=rf"topic {topic} does not take a record as large"):
        apply_patiently(sink, [[message(2, insert(ACCOUNTS, b"0", os.urandom(3000).hex().encode()))]])
    sink.close()


def test_names_that_are_one_to_kafka_are_found_and_refused_with_a_pattern_that_keeps_them_apart(
    real_kafka: RealKafka, group: str
) -> None:
    schema = group.replace("-", "_")
    one, other = table(f"{schema}_eu.orders", "id bigint"), table(f"{schema}.eu_orders", "id bigint")

    def collisions(destination: KafkaDestination, *tables: Table) -> list[tuple[Severity, str, str]]:
        found = find(worker_settings(group), destination.settings(), Incoming(tables=tables))
        return [(each.severity, each.fact, each.remedy) for each in found if each.check == "kafka-topic-collision"]

    alike = KafkaDestination(real_kafka, group, topic="{schema}.{table}")
    apart = KafkaDestination(real_kafka, group, topic="{schema}-{table}")
    [(severity, fact, remedy)] = collisions(alike, one, other)
    both = f"tables '{schema}_eu.orders' and '{schema}.eu_orders' would go to topics '{schema}_eu.orders' and"
    assert (severity, fact.startswith(both)) == (Severity.ERROR, True)
    assert remedy.startswith("write kafka-topic: {schema}-{table}, or ")
    assert collisions(apart, one, other) == []
    sink = alike.new_sink()
    sink.open()
    apply(sink, [[message(1, insert(one, b"1"))]])
    with pytest.raises(TerminalError, match=r"collides with topic .* like \{schema\}-\{table\}"):
        apply(sink, [[message(2, insert(other, b"1"))]])
    sink.close()
    [(_, fact, _)] = collisions(alike, other)
    assert fact.startswith(f"topic {schema}.eu_orders collides with topic {schema}_eu.orders: ")
    sink = apart.new_sink()
    sink.open()
    apply(sink, [[message(2, insert(other, b"1"))], [message(3, insert(one, b"2"))]])
    sink.close()


def test_tables_of_one_topic_are_told_of_where_the_pattern_names_tables(real_kafka: RealKafka, group: str) -> None:
    """Their keys are alike then, so a compacted topic keeps the newest row of any."""
    tables = [table(f"{schema}.orders", "id bigint") for schema in "abc"]

    def told(pattern: str) -> list[tuple[Severity, str]]:
        settings = KafkaDestination(real_kafka, group, topic=pattern).settings()
        found = find(worker_settings(group), settings, Incoming(tables=tables))
        return [(each.severity, each.fact) for each in found if each.check == "kafka-topic-collision"]

    fact = f"tables 'a.orders', 'b.orders', 'c.orders' would go to one topic, '{group}-orders'"
    assert told(f"{group}-{{table}}") == [(Severity.WARNING, fact)]
    assert told(group) == told(f"{group}-{{schema}}") == []


def test_a_table_whose_topic_is_that_of_positions_is_found(real_kafka: RealKafka, group: str) -> None:
    settings = KafkaDestination(real_kafka, group, topic="{schema}.{table}", position_topic="a.orders").settings()
    found = find(worker_settings(group), settings, Incoming(tables=[table("a.orders", "id bigint")]))
    fact = "table 'a.orders' would go to topic 'a.orders', which is that of kafka-position-topic"
    assert (Severity.ERROR, fact) in [(each.severity, each.fact) for each in found]


def test_a_topic_that_forgets_positions_is_refused(real_kafka: RealKafka, group: str) -> None:
    destination = applied(real_kafka, group, batch([1]))
    other = KafkaDestination(real_kafka, group, position_topic=f"{group}.public.events").new_sink()
    with pytest.raises(TerminalError, match="is not compacted"):
        other.open()
    other.close()
    assert destination.reader("events").records()


def test_a_position_is_found_behind_those_of_many_others(
    real_kafka: RealKafka, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position_topic, "NEWEST", 2)
    monkeypatch.setattr(position_topic, "GROWTH", 2)
    destination = applied(real_kafka, group, batch([1]))
    busy = destination.new_sink(name="busy")
    busy.open()
    for number in range(1, 9):
        apply(busy, batch([number]))
    busy.close()
    sink = destination.new_sink()
    assert sink.open() == position(1)
    sink.close()


def test_copied_rows_have_their_place(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    sink = destination.new_sink()
    sink.open()
    assert apply_copied(sink, copied_batch([1], [2])).stream_created == STREAM_CREATED
    sink.close()
    found = [record.headers for record in destination.reader("events").records()]
    assert [each["pgsluice-position"] for each in found] == ["copy:1:0:0", "copy:1:0:1", "copy:2:0:0", "copy:2:0:1"]
    assert {(each["pgsluice-operation"], each["pgsluice-snapshot"]) for each in found} == {("read", "first")}


@pytest.mark.parametrize(("partitions", "key"), [(3, "{key}"), (1, "{key}"), (3, "{table}")])
def test_a_truncation_goes_only_where_it_has_a_place(real_kafka: RealKafka, group: str, partitions: int, key: str) -> None:
    destination = KafkaDestination(real_kafka, group, format="pgsluice", partitions=partitions, key=key)
    changes = [[message(1, insert(EVENTS, b"1", b""), truncate(EVENTS), insert(EVENTS, b"2", b""))]]
    sink = destination.new_sink()
    sink.open()
    if (partitions, key) == (3, "{key}"):
        with pytest.raises(TerminalError, match="rows lie in 3 partitions"):
            apply(sink, changes)
        assert destination.reader("events").records() == []
    else:
        apply(sink, changes)
        told = [record.headers["pgsluice-operation"] for record in destination.reader("events").records()]
        assert told == ["insert", "truncate", "insert"]
    sink.close()
