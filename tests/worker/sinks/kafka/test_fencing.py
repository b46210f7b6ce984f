"""Who may produce: the process that began last, and nobody who was taken for dead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.batch import STREAM_CREATED, apply, write
from pgsluice.testing.tried_batches import position
from pgsluice.worker.sinks.sink import Receipt
from tests.servers.kafka import RealKafka
from tests.worker.sinks.kafka.cluster import KafkaDestination
from tests.worker.sinks.kafka.committed_history import CommittedHistory, transactions

pytestmark = pytest.mark.kafka


def test_a_zombie_is_refused_inside_its_transaction(real_kafka: RealKafka, group: str, capfd: pytest.CaptureFixture[str]) -> None:
    destination = KafkaDestination(real_kafka, group)
    zombie, successor = destination.new_sink(), destination.new_sink()
    zombie.open()
    apply(zombie, transactions([1]))

    def receipts() -> Iterator[Receipt]:
        first, second = write(zombie, transactions([2, 3]))
        yield first
        assert successor.open() == position(1)
        apply(successor, transactions([2]))
        yield second

    with pytest.raises(TerminalError, match="another process moved the position"):
        zombie.commit(receipts(), STREAM_CREATED)
    with pytest.raises(TerminalError, match="another process moved the position"):
        apply(zombie, transactions([2, 3]))
    zombie.close()
    assert apply(successor, transactions([3])) == position(3)
    successor.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(3)
    assert "FATAL" not in capfd.readouterr().err, "the library tells on standard error what the error says"


def test_a_transaction_that_the_brokers_ended_is_begun_again_by_the_same_process(group: str, real_kafka: RealKafka) -> None:
    destination = KafkaDestination(real_kafka, group, transaction_timeout_s=10.0)
    sink = destination.new_sink()
    sink.open()
    apply(sink, transactions([1]))

    def receipts() -> Iterator[Receipt]:
        first, second = write(sink, transactions([2, 3]))
        yield first
        sink._outlet._producer._producer.flush(30)  # type: ignore[union-attr]
        assert CommittedHistory.read(destination) == CommittedHistory.whole(1), "it waits until nothing is open"
        yield second

    with pytest.raises(TransientError, match="longer than kafka-transaction-timeout \\(10 s\\)"):
        sink.commit(receipts(), STREAM_CREATED)
    assert apply(sink, transactions([2, 3])) == position(3)
    sink.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(3)


def test_a_reader_of_what_is_committed_sees_whole_transactions_only(real_kafka: RealKafka, group: str) -> None:
    destination = KafkaDestination(real_kafka, group)
    sink = destination.new_sink()
    sink.open()
    apply(sink, transactions([1]))

    def receipts() -> Iterator[Receipt]:
        for receipt in write(sink, transactions([2, 3])):
            assert CommittedHistory.read(destination, waits=False) == CommittedHistory.whole(1)
            yield receipt
        sink._outlet._producer._producer.flush(30)  # type: ignore[union-attr]
        assert [len(destination.reader(table).records(committed=False)) for table in ("events", "accounts")] == [6, 6]
        assert CommittedHistory.read(destination, waits=False) == CommittedHistory.whole(1)

    sink.commit(receipts(), STREAM_CREATED)
    sink.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(3)
