"""Who may produce: the process that began last, and nobody who was taken for dead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.batch import STREAM_CREATED, apply, write
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.sinks.sink import Receipt
from tests.servers.kafka import RealKafka
from tests.worker.sinks.kafka.cluster import KafkaDestination

pytestmark = pytest.mark.kafka


def ids(destination: KafkaDestination, *, waits: bool = True) -> list[str]:
    return [record.headers["pgsluice-position"] for record in destination.reader("events").records(waits=waits)]


def positions(last: int) -> list[str]:
    return [f"0/{1000 * n:X}:{ordinal}" for n in range(1, last + 1) for ordinal in (1, 2)]


def test_a_zombie_is_refused_inside_its_transaction(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    zombie, successor = destination.new_sink(), destination.new_sink()
    zombie.open()
    apply(zombie, batch([1]))

    def receipts() -> Iterator[Receipt]:
        first, second = write(zombie, batch([2], [3]))
        yield first
        assert successor.open() == position(1)
        apply(successor, batch([2]))
        yield second

    with pytest.raises(TerminalError, match="another process moved the position"):
        zombie.commit(receipts(), STREAM_CREATED)
    with pytest.raises(TerminalError, match="another process moved the position"):
        apply(zombie, batch([2], [3]))
    zombie.close()
    assert apply(successor, batch([3])) == position(3)
    successor.close()
    assert ids(destination) == positions(3)


def test_a_transaction_that_the_brokers_ended_is_begun_again_by_the_same_process(group: str, real_kafka: RealKafka) -> None:
    destination = KafkaDestination(real_kafka, group, transaction_timeout_s=10.0)
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))

    def receipts() -> Iterator[Receipt]:
        first, second = write(sink, batch([2], [3]))
        yield first
        sink._outlet._producer._producer.flush(30)  # type: ignore[union-attr]
        assert ids(destination) == positions(1), "it waits until nothing is open"
        yield second

    with pytest.raises(TransientError, match="longer than kafka-transaction-timeout \\(10 s\\)"):
        sink.commit(receipts(), STREAM_CREATED)
    assert apply(sink, batch([2], [3])) == position(3)
    sink.close()
    assert ids(destination) == positions(3)


def test_a_reader_of_what_is_committed_sees_whole_transactions_only(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))

    def receipts() -> Iterator[Receipt]:
        for receipt in write(sink, batch([2], [3])):
            assert ids(destination, waits=False) == positions(1)
            yield receipt
        sink._outlet._producer._producer.flush(30)  # type: ignore[union-attr]
        assert len(destination.reader("events").records(committed=False)) == len(events(3))
        assert ids(destination, waits=False) == positions(1)

    sink.commit(receipts(), STREAM_CREATED)
    sink.close()
    assert ids(destination) == positions(3)
