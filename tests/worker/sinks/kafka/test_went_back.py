"""Topics that have forgotten records which the position counts as delivered: the worker notices it before it goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from pgsluice.shared.errors import SinkBehindError, TerminalError
from pgsluice.testing.batch import Batch, apply
from pgsluice.testing.changes_builder import insert, message, table, update
from pgsluice.testing.tried_batches import ACCOUNTS, batch, position
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.written_ends import WrittenEnds
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import KafkaDestination, TopicReader, apply_patiently

pytestmark = pytest.mark.kafka

ANSWER_S = 60.0


def changes(sequence: int, count: int) -> Batch:
    return [[message(sequence, *(update(ACCOUNTS, b"%d" % n, b"%d" % sequence) for n in range(count)))]]


def apply_in_new_process(destination: KafkaDestination, sequence: int, count: int = 100) -> None:
    sink = destination.new_sink()
    try:
        sink.open()
        apply(sink, changes(sequence, count))
    finally:
        sink.close()


@pytest.fixture
def broker() -> Iterator[RealKafka]:
    """One whose data a test may exchange."""
    with RealKafka() as broker:
        yield broker


def logs_of(broker: RealKafka, topic: str) -> list[Path]:
    return sorted(path for path in (broker.directory / "data").iterdir() if path.name.rpartition("-")[0] == topic)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_partition_that_was_put_back_to_an_earlier_state_stops_the_worker(
    broker: RealKafka, group: str, tmp_path: Path, partition: int
) -> None:
    destination = KafkaDestination(broker, group, partitions=2)
    apply_in_new_process(destination, 1)
    broker.stop()
    log = logs_of(broker, destination.reader("accounts").topic)[partition]
    shutil.copytree(log, tmp_path / "older")
    broker.start()
    apply_in_new_process(destination, 2)
    broker.stop()
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "older", log)
    broker.start()
    with pytest.raises(TerminalError, match=rf"partition {partition} of topic \S+accounts ends at offset .* has lost records"):
        apply_in_new_process(destination, 3)
    assert 3 not in {sequence_of(value) for value in destination.reader("accounts").values()}


def test_a_partition_that_goes_back_to_where_it_knew_nothing_of_the_worker_stops_it(group: str, tmp_path: Path) -> None:
    """Brokers before Kafka 3.6, as those that do not verify, take any record of a producer that they do not know."""
    with RealKafka({"transaction.partition.verification.enable": "false"}) as broker:
        destination = KafkaDestination(broker, group)
        topic = destination.reader("accounts").topic
        ClusterTopics(destination.settings()).make(topic, 1, {})
        sink = destination.new_sink()
        sink.open()
        broker.stop()
        [log] = logs_of(broker, topic)
        shutil.copytree(log, tmp_path / "older")
        broker.start()
        apply_patiently(sink, changes(2, 100))
        apply_patiently(sink, batch([3]))  # it waits until the transaction before has ended everywhere
        broker.kill()
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "older", log)
        broker.start()
        for _ in range(2):
            with pytest.raises(TerminalError, match=rf"partition 0 of topic {topic} ends at offset 0, .* has lost records"):
                apply_patiently(sink, changes(4, 200))
        sink.close()
        assert destination.reader("accounts").records() == []


def test_positions_that_went_back_with_the_topics_end_the_worker_and_the_next_one_sends_the_rest_again(
    broker: RealKafka, group: str, tmp_path: Path
) -> None:
    """No topic ends before where the position says then, but this process had read on from what is gone."""
    destination = KafkaDestination(broker, group)
    sink = destination.new_sink()
    sink.open()
    apply(sink, changes(1, 100))
    broker.stop()
    shutil.copytree(broker.directory / "data", tmp_path / "earlier")
    broker.start()
    apply_patiently(sink, changes(2, 100))
    apply_patiently(sink, changes(3, 100))
    broker.kill()
    shutil.rmtree(broker.directory / "data")
    shutil.copytree(tmp_path / "earlier", broker.directory / "data")
    broker.start()
    with pytest.raises(SinkBehindError, match="before the position that this worker delivered"):
        apply_patiently(sink, changes(4, 100))
    sink.close()
    successor = destination.new_sink()
    assert successor.open() == position(1)
    apply(successor, [[*changes(2, 100)[0], *changes(3, 100)[0], *changes(4, 100)[0]]])
    successor.close()
    found = [sequence_of(value) for value in destination.reader("accounts").values()]
    assert found == [number for number in range(1, 5) for _ in range(100)]


def sequence_of(value: dict[str, Any]) -> int:
    return int(value["after"]["note"])


def test_a_topic_that_was_deleted_or_made_again_stops_the_worker(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    apply_in_new_process(destination, 1)
    topic, admin = destination.reader("accounts").topic, AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(ANSWER_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=ANSWER_S).topics, what="the end of the topic")
    for _ in range(2):
        with pytest.raises(TerminalError, match="created again, or put back"):
            apply_in_new_process(destination, 2)
    assert TopicReader(real_kafka, topic).records() == []


def test_a_topic_that_is_deleted_under_the_worker_stops_it(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group, transaction_timeout_s=10.0)
    sink = destination.new_sink()
    sink.open()
    apply(sink, changes(1, 100))
    topic, admin = destination.reader("accounts").topic, AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(ANSWER_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=ANSWER_S).topics, what="the end of the topic")
    with pytest.raises(TerminalError, match="created again, or put back"):
        apply_patiently(sink, changes(2, 100))
    sink.close()


def test_records_that_went_as_retention_says_stop_nobody(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    apply_in_new_process(destination, 1)
    topic, admin = destination.reader("accounts").topic, AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    place = TopicPartition(topic, 0, 50)
    admin.delete_records([place])[place].result(ANSWER_S)
    apply_in_new_process(destination, 2)
    assert {sequence_of(value) for value in destination.reader("accounts").values()} == {1, 2}


def test_partitions_that_were_added_are_told_of_with_the_place(
    real_kafka: RealKafka, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    destination = KafkaDestination(real_kafka, group)
    apply_in_new_process(destination, 1)
    topic, admin = destination.reader("accounts").topic, AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(ANSWER_S)
    wait_until(lambda: len(admin.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions) == 3, what="three partitions")
    assert "more partitions" not in caplog.text
    apply_in_new_process(destination, 2)
    apply_in_new_process(destination, 3)
    assert caplog.text.count("a topic has more partitions than before") == 1


def test_a_position_of_an_earlier_version_counts(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    apply_in_new_process(destination, 1)
    positions = TopicReader(real_kafka, f"{group}-positions")
    newest = positions.records()[-1]
    assert newest.value is not None
    content = orjson.loads(newest.value)
    assert list(content.pop("ends")) == [destination.reader("accounts").topic]
    earlier = Producer({"bootstrap.servers": real_kafka.bootstrap})
    earlier.produce(positions.topic, orjson.dumps(content), newest.key, 0)
    assert earlier.flush(ANSWER_S) == 0
    apply_in_new_process(destination, 2)
    assert [sequence_of(value) for value in destination.reader("accounts").values()] == [1] * 100 + [2] * 100


def test_a_position_that_alone_was_put_back_has_its_records_written_again(real_kafka: RealKafka, group: str) -> None:
    """Nothing tells: others may have written to the topics since."""
    destination = KafkaDestination(real_kafka, group)
    apply_in_new_process(destination, 1)
    positions = TopicReader(real_kafka, f"{group}-positions")
    older = positions.records()[-1]
    apply_in_new_process(destination, 2)
    restoring = Producer({"bootstrap.servers": real_kafka.bootstrap})
    restoring.produce(positions.topic, older.value, older.key, 0)
    assert restoring.flush(ANSWER_S) == 0
    apply_in_new_process(destination, 2)
    assert [sequence_of(value) for value in destination.reader("accounts").values()] == [1] * 100 + [2] * 200


def test_a_position_holds_the_topics_that_were_written_to_last() -> None:
    ends = WrittenEnds({"a": (1,), "b": (2,), "c": (3,)})
    found = ends.after({"a": (4,), "d": (5,)}, most_bytes=65)
    assert list(found.by_topic.items()) == [("c", (3,)), ("a", (4,)), ("d", (5,))]


def test_a_position_is_no_larger_than_a_record_may_be(real_kafka: RealKafka, group: str) -> None:
    """However many topics the worker has written to."""
    destination = KafkaDestination(real_kafka, group, max_record_bytes=1000)
    tables = [table(f"public.t{number}", "id bigint") for number in range(40)]
    sink = destination.new_sink()
    sink.open()
    apply(sink, [[message(1, *(insert(each, b"1") for each in tables))]])
    sink.close()
    apply_in_new_process(destination, 2)
    assert len(destination.reader("accounts").records()) == 100
