"""What a worker reads of Kafka is taken from under it: it ends, and says why; nothing is passed over."""

from __future__ import annotations

import pytest

from tests.servers import NatsServer, PgsluiceProcess
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.written_topic import WrittenTopic, ids_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

CANNOT_SUCCEED = 70


@pytest.fixture
def topic(real_kafka: RealKafka, nats_server: NatsServer, group: str) -> WrittenTopic:
    """Whose first record is read."""
    made = WrittenTopic(real_kafka, nats_server, group)
    made.add(1)
    assert made.read() == [1]
    return made


def test_a_topic_that_was_made_anew_while_the_worker_was_away_stops_it(topic: WrittenTopic) -> None:
    """With as many records as before, too."""
    topic.make_anew()
    topic.add(2)
    topic.add(3)
    stopped = topic.run()
    assert (stopped.code, stopped.stdout) == (CANNOT_SUCCEED, "")
    assert f"topic {topic.name} was removed and created again" in stopped.log


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_topic_that_goes_while_it_is_read_ends_the_worker(topic: WrittenTopic, comes_back: bool) -> None:
    with PgsluiceProcess("worker", "stdout", config=topic.keys) as worker:
        topic.add(2)
        wait_until(lambda: worker.stdout(), deadline_s=120, what="the second record")
        if comes_back:
            topic.make_anew()
            topic.add(3)
        else:
            topic.remove()
        assert worker.wait(120) == CANNOT_SUCCEED, worker.log()
        assert ids_of(worker.stdout()) == [2]
        # Which of the two it sees first is chance: that the topic is away, or that it is another one.
        told = [f"there is no topic {topic.name} in Kafka", f"topic {topic.name} was removed and created again"]
        assert any(each in worker.log() for each in told[: 1 + comes_back]), worker.log()


@pytest.mark.parametrize("left", [0, 1])
def test_records_that_kafka_removed_before_they_were_read_stop_the_worker_each_time(topic: WrittenTopic, left: int) -> None:
    """All of them, or all but the newest, which is not delivered without those before."""
    topic.add(2)
    topic.add(3)
    topic.forget(records=2 * left)  # a transaction's end has an offset of its own
    for _ in range(2):
        stopped = topic.run()
        assert (stopped.code, stopped.stdout) == (CANNOT_SUCCEED, "")
        assert f"of topic {topic.name}, partition 0, are gone, and were not all applied" in stopped.log


def test_records_that_kafka_removed_after_they_were_read_are_not_missed(topic: WrittenTopic) -> None:
    topic.forget()
    topic.add(2)
    assert topic.read() == [2]


def test_a_group_that_begins_when_the_oldest_records_are_gone_says_so(topic: WrittenTopic) -> None:
    topic.add(2)
    topic.forget(records=2)
    begun = topic.run(group=f"{topic.keys['group']}-2")
    assert (begun.code, ids_of(begun.stdout)) == (0, [2])
    assert "a topic has lost its oldest records" in begun.log


def test_a_topic_that_comes_with_the_first_row_of_its_table_is_waited_for(
    real_kafka: RealKafka, nats_server: NatsServer, group: str
) -> None:
    later = WrittenTopic(real_kafka, nats_server, group)
    with PgsluiceProcess("worker", "stdout", config=later.keys) as worker:
        worker.wait_for_log("topics are not there yet")
        later.add(1)
        wait_until(lambda: ids_of(worker.stdout()) == [1], deadline_s=120, what="the first record")
        later.remove()
        assert worker.wait(120) == CANNOT_SUCCEED, worker.log()
        assert f"there is no topic {later.name} in Kafka" in worker.log()
