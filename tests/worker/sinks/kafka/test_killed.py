"""A worker that is killed inside transactions, and a broker: each change is there once, and whole source transactions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.worker.sinks.sink import Receipt
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka import dying_worker
from tests.worker.sinks.kafka.cluster import KafkaDestination, apply_patiently
from tests.worker.sinks.kafka.committed_history import CommittedHistory, transaction, transactions
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
    ("produce", 4 * BATCH_MESSAGES + 1, "after"),  # the last change
    ("produce", 4 * BATCH_MESSAGES + 2, "after"),  # the position
    ("commit_transaction", 2, "before"),
    ("commit_transaction", 2, "delivered"),
    ("commit_transaction", 2, "after"),
    ("poll", 3, "before"),
]


def test_a_worker_that_dies_at_every_call_leaves_each_change_once(real_kafka: RealKafka, group: str) -> None:
    last = BATCH_MESSAGES * len(DEATHS)
    destination = KafkaDestination(real_kafka, group)
    codes = [dying_worker.run(destination, last, *death) for death in DEATHS]
    assert codes.count(-signal.SIGKILL) >= len(DEATHS) - 2, codes
    sink = destination.new_sink()
    reached = sink.open().sequence
    assert reached >= BATCH_MESSAGES, "a batch that was committed before its process died counts"
    apply_patiently(sink, transactions(range(reached + 1, last + 1)))
    sink.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(last)
    events = destination.reader("events")
    assert len(events.records(committed=False)) > len(events.records()), "some died with records delivered"


def test_a_broker_that_is_killed_inside_transactions_loses_and_doubles_nothing(group: str) -> None:
    with RealKafka() as broker:
        destination = KafkaDestination(broker, group)
        sink = destination.new_sink()
        sink.open()
        for sequence in (1, 4, 7):
            changes = [[transaction(sequence)], [transaction(sequence + 1), transaction(sequence + 2)]]
            try:
                sink.commit(interrupted(write(sink, changes), broker, waits=sequence != 7), STREAM_CREATED)
            except TransientError:
                apply_patiently(sink, changes)
            wait_until(lambda: broker.is_running, deadline_s=60, what="a broker")
        apply_patiently(sink, transactions([10]))
        sink.close()
        assert CommittedHistory.read(destination) == CommittedHistory.whole(10)


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
