"""Brokers that do not answer, and commits of which nobody knows whether they count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError

from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.sinks.kafka import cluster_topics, position_topic, record_producer
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.record_producer import RecordProducer
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from tests.servers.kafka import RealKafka
from tests.worker.sinks.kafka.cluster import KafkaDestination, kafka_settings, open_transaction
from tests.worker.sinks.kafka.committed_history import CommittedHistory, transactions

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "question",
    [
        lambda topics, name: topics.offsets(name, 0),
        lambda topics, name: topics.config(name),
        lambda topics, name: topics.make(f"{name}.more", 1, {}),
    ],
    ids=["offsets", "config", "make"],
)
def test_a_broker_that_stands_still_is_waited_for(
    real_kafka: RealKafka, group: str, monkeypatch: pytest.MonkeyPatch, question: Callable[[ClusterTopics, str], None]
) -> None:
    topics = ClusterTopics(kafka_settings(real_kafka, group))
    topics.make(f"{group}.there", 1, {})
    topics.offsets(f"{group}.there", 0)
    monkeypatch.setattr(cluster_topics, "ANSWER_DEADLINE_S", 1.0)
    with real_kafka.paused(), pytest.raises(TransientError, match="does not answer"):
        question(topics, f"{group}.there")


def unanswered(producer: RecordProducer) -> PgsluiceError:
    return producer._complaints.of(KafkaError(KafkaError._TIMED_OUT))


@dataclass(frozen=True, slots=True)
class Opened:
    """A sink that has applied its first batch."""

    destination: KafkaDestination
    sink: KafkaSink

    def check_holds(self, count: int) -> None:
        """Closes the sink, too."""
        self.sink.close()
        assert CommittedHistory.read(self.destination) == CommittedHistory.whole(count)


@pytest.fixture
def opened(real_kafka: RealKafka, group: str) -> Opened:
    destination = KafkaDestination(real_kafka, group)
    sink = destination.new_sink()
    sink.open()
    apply(sink, transactions([1]))
    return Opened(destination, sink)


def test_a_commit_that_counted_is_not_repeated_when_it_takes_two_looks_to_know_it(
    real_kafka: RealKafka, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened.sink
    commit, init = RecordProducer.commit, RecordProducer.init

    def commit_whose_answer_is_lost(self: RecordProducer) -> None:
        commit(self)
        raise unanswered(self)

    with monkeypatch.context() as patched:
        patched.setattr(RecordProducer, "commit", commit_whose_answer_is_lost)
        with pytest.raises(TransientError):
            apply(sink, transactions([2]))
    other = open_transaction(real_kafka, opened.destination.settings().position_topic)

    def init_before_another_begins(self: RecordProducer) -> None:
        init(self)
        other.__enter__()

    with monkeypatch.context() as patched:
        patched.setattr(RecordProducer, "init", init_before_another_begins)
        patched.setattr(position_topic, "ANSWER_DEADLINE_S", 2.0)
        with pytest.raises(TransientError, match="cannot be read to its end"):
            apply(sink, transactions([2]))
    other.__exit__(None, None, None)
    assert apply(sink, transactions([2])) == position(2)
    opened.check_holds(2)


def test_what_an_unanswered_commit_left_open_is_ended_at_once(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of what is committed would wait for it, for as long as the brokers keep it open."""
    sink = opened.sink

    def commit_that_does_not_arrive(self: RecordProducer) -> None:
        self.settle()
        raise unanswered(self)

    with monkeypatch.context() as patched:
        patched.setattr(RecordProducer, "commit", commit_that_does_not_arrive)
        patched.setattr(RecordProducer, "abort", lambda self: False)
        with pytest.raises(TransientError):
            apply(sink, transactions([2]))
    monkeypatch.setattr(position_topic, "ANSWER_DEADLINE_S", 3.0)
    assert apply(sink, transactions([2])) == position(2)
    opened.check_holds(2)


def test_what_brokers_refused_once_is_no_reason_any_more_when_they_have_answered_since(real_kafka: RealKafka, group: str) -> None:
    """As brokers that start may, which do not know the user yet."""
    sink = KafkaDestination(real_kafka, group).new_sink()
    sink.open()
    producer = sink._outlet._producer
    assert producer is not None
    producer._complaints.note(KafkaError(KafkaError._AUTHENTICATION))
    apply(sink, transactions([1]))
    assert isinstance(unanswered(producer), TransientError)
    sink.close()


def test_a_position_waits_for_room_behind_the_records(real_kafka: RealKafka, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the batches, which are larger and larger, one fills the producer's queue but for less than a position."""
    monkeypatch.setattr(record_producer, "QUEUE_KIB", 1)
    destination = KafkaDestination(real_kafka, group, max_record_bytes=1000, headers=False)
    sink = destination.new_sink()
    sink.open()
    last = 0
    for length in range(0, 300, 10):
        assert apply(sink, batch(range(last + 1, last + 5), note=b"x" * length)) == position(last + 4)
        last += 4
    sink.close()
    assert [line["after"]["id"] for line in destination.reader("events").values()] == events(last)
