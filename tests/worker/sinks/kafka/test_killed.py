"""A worker that is killed inside transactions, and a broker: each change is there once, and whole source transactions."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.testing.batch import STREAM_CREATED, Batch, write
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from pgsluice.worker.sinks.sink import Applied, Receipt
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import KafkaDestination, KafkaRecord
from tests.worker.sinks.kafka.dying_worker import BATCH_MESSAGES

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1200)]

DEATHS = [
    ("init_transactions", 1, "before"),
    ("init_transactions", 1, "after"),
    ("begin_transaction", 1, "after"),  # the transaction with which a process says that it is the writer
    ("commit_transaction", 1, "before"),
    ("commit_transaction", 1, "after"),
    ("begin_transaction", 2, "before"),  # that of the batch
    ("begin_transaction", 2, "after"),
    ("produce", 2, "after"),  # a change, behind that position
    ("produce", 2 * BATCH_MESSAGES + 1, "after"),  # the last change
    ("produce", 2 * BATCH_MESSAGES + 2, "after"),  # the position
    ("commit_transaction", 2, "before"),
    ("commit_transaction", 2, "delivered"),
    ("commit_transaction", 2, "after"),
    ("poll", 3, "before"),
]


def run_one(broker: RealKafka, group: str, last: int, name: str, number: int, when: str) -> int:
    program = [sys.executable, "-m", "tests.worker.sinks.kafka.dying_worker"]
    return subprocess.run([*program, broker.bootstrap, group, str(last), name, str(number), when], timeout=300).returncode


def ids(records: list[KafkaRecord]) -> list[int]:
    """Of the events, in the order of their positions, which is the records'."""
    ordinals = [record.headers["pgsluice-position"] for record in records]
    assert len(set(ordinals)) == len(ordinals)
    assert all(before.offset < after.offset for before, after in pairwise(records))
    return [int((record.value or b"").split(b'"after":{"id":')[1].split(b",")[0]) for record in records]


def test_a_worker_that_dies_at_every_call_leaves_each_change_once(real_kafka: RealKafka, group: str) -> None:
    last = BATCH_MESSAGES * len(DEATHS)
    codes = [run_one(real_kafka, group, last, *death) for death in DEATHS]
    assert codes.count(-signal.SIGKILL) >= len(DEATHS) - 2, codes
    reader = KafkaDestination(real_kafka, group).reader("events")
    sink = KafkaDestination(real_kafka, group).new_sink()
    reached = sink.open().sequence
    assert reached >= BATCH_MESSAGES, "a batch that was committed before its process died counts"
    apply_all(sink, batch(*([n] for n in range(reached + 1, last + 1))))
    sink.close()
    assert ids(reader.records()) == events(last)
    assert len(reader.records(committed=False)) > len(events(last)), "some died with records delivered"


def apply_all(sink: KafkaSink, changes: Batch) -> Applied:
    """As a worker does, until Kafka answers."""

    def applied() -> Applied | None:
        try:
            return sink.commit(write(sink, changes), STREAM_CREATED)
        except TransientError:
            return None

    return wait_until(applied, deadline_s=600, what="a batch that is applied")


def test_a_broker_that_is_killed_inside_transactions_loses_and_doubles_nothing(group: str) -> None:
    with RealKafka() as broker:
        destination = KafkaDestination(broker, group)
        sink = destination.new_sink()
        sink.open()
        for sequence in (1, 4, 7):
            changes = batch([sequence], [sequence + 1, sequence + 2])
            try:
                sink.commit(interrupted(write(sink, changes), broker, waits=sequence != 7), STREAM_CREATED)
            except TransientError:
                apply_all(sink, changes)
            wait_until(lambda: broker.is_running, deadline_s=60, what="a broker")
        assert apply_all(sink, batch([10])) == position(10)
        sink.close()
        assert ids(destination.reader("events").records()) == events(10)


def interrupted(receipts: list[Receipt], broker: RealKafka, *, waits: bool) -> Iterator[Receipt]:
    """After the first the broker is killed, and comes back before the others, or meanwhile."""
    yield receipts[0]
    broker.kill()
    returning = threading.Thread(target=broker.start)
    returning.start()
    if waits:
        returning.join()
    yield from receipts[1:]
    returning.join()
