"""The promises of every sink about batches of changes (``worker.sinks.sink``), as tests.

The changes are inserts, into a table without a key if the sink takes such, so that a change which is applied twice
shows twice. If the sequence of a key's changes matters, they are a keyed table's.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.testing.batch import (
    STREAM_CREATED,
    apply,
    write,
    write_partition,
)
from pgsluice.testing.changes_builder import delete, insert, message, message_of, transaction, update
from pgsluice.testing.destination import Destination
from pgsluice.testing.promises import Promise, asks
from pgsluice.testing.tried_batches import ACCOUNTS, events, position
from pgsluice.testing.tried_sink import TriedSink
from pgsluice.worker.sinks.abilities import RenumberedSink, TwoLaneSink
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Partition, PartitionWriter, Receipt, Sink


class ChangesContract(TriedSink):
    """Needs a fixture ``destination``; ``sink`` is open."""

    def test_a_sink_has_the_abilities_that_it_promises_and_no_others(self, destination: Destination) -> None:
        """An ability that is present and not promised would not be tested."""
        sink = destination.new_sink()
        assert isinstance(sink, RenumberedSink) is (Promise.RENUMBER in self.promises), "Promise.RENUMBER and renumber() differ"
        assert isinstance(sink, TwoLaneSink) is (Promise.CATCH_UP in self.promises), "Promise.CATCH_UP and keeps_catch_up differ"

    def test_nothing_is_applied_at_first(self, destination: Destination) -> None:
        sink = destination.new_sink()
        assert sink.open() == NOTHING_APPLIED
        sink.close()

    def test_a_committed_batch_is_delivered(self, destination: Destination, sink: Sink) -> None:
        assert apply(sink, self.batch([1, 2], [3])) == position(3)
        assert destination.delivered() == events(3)

    def test_open_returns_what_the_last_commit_returned(self, sink: Sink, successor: Sink) -> None:
        apply(sink, self.batch([1]))
        applied = apply(sink, self.batch([2], [3]))
        sink.close()
        assert successor.open() == applied == position(3)

    @asks(Promise.RENUMBER)
    def test_a_sink_goes_on_at_another_sequence_when_the_stream_counts_anew(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        """Three messages were applied; the stream holds the same changes in one message now."""
        apply(sink, self.batch([1, 2, 3]))
        sink.close()
        applied = successor.open()
        assert isinstance(successor, RenumberedSink)
        moved = replace(applied, sequence=1)
        successor.renumber(moved)
        change = transaction(
            4000, insert(self.events_table, b"8", b"n"), insert(self.events_table, b"9", b"n"), xid=4, committed_at=4
        )
        after = apply(successor, [[message_of(2, change)]])
        assert after == Applied(2, 4000, 4, STREAM_CREATED)
        assert destination.delivered() == events(4)
        successor.close()
        assert successor.open() == after

    def test_partitions_and_batches_are_delivered_in_commit_order(self, destination: Destination, sink: Sink) -> None:
        apply(sink, self.batch([1, 2], [3, 4, 5], [6]))
        apply(sink, self.batch([7], [8, 9]))
        assert destination.delivered() == events(9)

    def test_large_partitions_are_delivered_whole(self, destination: Destination, sink: Sink) -> None:
        assert apply(sink, self.batch(range(1, 7), range(7, 9), note=self.large_note)) == position(8)
        assert destination.delivered() == events(8)

    def test_what_was_written_but_not_committed_is_not_delivered(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        apply(sink, self.batch([1]))
        write(sink, self.batch([2, 3], note=self.large_note))
        sink.close()
        assert successor.open() == position(1)
        assert destination.delivered() == events(1)

    def test_after_a_crash_between_write_and_commit_the_batch_is_delivered_once(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        write(sink, self.batch([1, 2], [3], note=self.large_note))
        sink.close()
        assert successor.open() == NOTHING_APPLIED
        assert apply(successor, self.batch([1, 2], [3], note=self.large_note)) == position(3)
        assert destination.delivered() == events(3)

    def test_after_a_crash_behind_a_commit_the_successor_goes_on_behind_it(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        apply(sink, self.batch([1], [2]))
        write(sink, self.batch([3], note=self.large_note))
        assert successor.open() == position(2)
        assert apply(successor, self.batch([3, 4])) == position(4)
        assert destination.delivered() == events(4)

    def test_changes_of_a_key_are_delivered_in_their_order(self, destination: Destination, sink: Sink) -> None:
        """Holds over transactions, partitions and batches; keys come, go and change."""
        first = message(1, insert(ACCOUNTS, b"1", b"a"), insert(ACCOUNTS, b"2", b"a"), insert(ACCOUNTS, b"3", b"a"))
        apply(
            sink,
            [
                [first, message(2, update(ACCOUNTS, b"1", b"b"), update(ACCOUNTS, b"1", b"c"))],
                [message(3, update(ACCOUNTS, b"1", b"d"), delete(ACCOUNTS, b"2", None))],
                [message(4, insert(ACCOUNTS, b"2", b"e")), message(5, update(ACCOUNTS, b"4", b"f", old=(b"3", None)))],
            ],
        )
        assert destination.accounts() == {1: "d", 2: "e", 4: "f"}
        apply(sink, [[message(6, delete(ACCOUNTS, b"1", None))], [message(7, insert(ACCOUNTS, b"1", b"g"))]])
        apply(sink, [[message(8, update(ACCOUNTS, b"2", b"h"), delete(ACCOUNTS, b"4", None))]])
        assert destination.accounts() == {1: "g", 2: "h"}

    def test_an_error_in_the_middle_of_a_partition_is_handed_on_and_delivers_nothing_of_it(
        self, destination: Destination, sink: Sink
    ) -> None:
        """A case: the broker does not answer while a task reads."""
        apply(sink, self.batch([1]))
        (messages,) = self.batch([2, 3, 4], note=self.large_note)
        with pytest.raises(TransientError, match="does not answer"):
            list(sink.writer().write(Partition(2, 4), cut_off(messages[:2])))
        assert apply(sink, [messages]) == position(4)
        assert destination.delivered() == events(4)

    def test_a_partition_that_is_written_twice_is_delivered_once(self, destination: Destination, sink: Sink) -> None:
        """A case: Spark tries a task again, or runs two attempts; the driver sees the receipts of one."""
        first, second = self.batch([1, 2], [3], note=self.large_note)
        write(sink, [first])
        receipts = write(sink, [first, second])
        write(sink, [second])
        assert sink.commit(receipts, STREAM_CREATED) == position(3)
        assert destination.delivered() == events(3)

    def test_a_batch_that_is_committed_twice_is_delivered_once(self, destination: Destination, sink: Sink) -> None:
        """A case: the worker does not know whether a commit succeeded, and tries again."""
        apply(sink, self.batch([1, 2], [3]))
        assert apply(sink, self.batch([1, 2], [3])) == position(3)
        assert destination.delivered() == events(3)

    def test_an_error_among_the_receipts_leaves_the_position(self, destination: Destination, sink: Sink, successor: Sink) -> None:
        apply(sink, self.batch([1]))
        with pytest.raises(TransientError):
            sink.commit(broken_off(write(sink, self.batch([2], [3]))), STREAM_CREATED)
        sink.close()
        assert successor.open() == position(1)
        if self.is_exactly_once:
            assert destination.delivered() == events(1)

    def test_the_same_sink_applies_a_batch_after_an_error_once(self, destination: Destination, sink: Sink) -> None:
        apply(sink, self.batch([1]))
        with pytest.raises(TransientError):
            sink.commit(broken_off(write(sink, self.batch([2], [3]))), STREAM_CREATED)
        assert apply(sink, self.batch([2], [3])) == position(3)
        assert destination.delivered() == events(3)

    def test_a_successor_applies_a_batch_after_an_error(self, destination: Destination, sink: Sink, successor: Sink) -> None:
        with pytest.raises(TransientError):
            sink.commit(broken_off(write(sink, self.batch([1], [2], [3]))), STREAM_CREATED)
        sink.close()
        successor.open()
        assert apply(successor, self.batch([1], [2], [3])) == position(3)
        delivered = destination.delivered()
        assert delivered[-len(events(3)) :] == events(3)
        if self.is_exactly_once:
            assert len(delivered) == len(events(3))

    @pytest.mark.parametrize("common", [0, 1])
    def test_of_two_processes_only_one_moves_the_position(
        self, destination: Destination, sink: Sink, successor: Sink, common: int
    ) -> None:
        """A case: a worker that was considered dead comes back; ``common`` batches were applied before."""
        if common:
            apply(sink, self.batch([1]))
        assert successor.open().sequence == common
        apply(successor, self.batch(range(common + 1, 3)))
        with pytest.raises(TerminalError, match=self.taken_over or None):
            apply(sink, self.batch(range(common + 1, 3), [3]))
        successor.close()
        assert successor.open() == position(2)
        if self.is_exactly_once:
            assert destination.delivered() == events(2)

    def test_a_message_without_changes_moves_the_position(self, destination: Destination, sink: Sink, successor: Sink) -> None:
        apply(sink, self.batch([1]))
        assert apply(sink, [[message_of(2, transaction(5000, committed_at=9))]]) == Applied(2, 5000, 9, STREAM_CREATED)
        assert destination.delivered() == events(1)
        sink.close()
        assert successor.open().sequence == 2

    def test_a_partition_without_messages_has_a_receipt(self, sink: Sink) -> None:
        """A case: all of them are left out, or are chunks of a message that began before."""
        assert list(sink.writer().write(Partition(1, 1), iter(())))
        assert list(sink.writer().write_copied(Partition(1, 1), iter(())))

    def test_a_batch_in_which_nothing_commits_keeps_the_last_commit(self, sink: Sink) -> None:
        apply(sink, self.batch([1]))
        assert apply(sink, [[message_of(2)]]) == Applied(2, 1000, 1, STREAM_CREATED)

    def test_a_transaction_in_several_messages_counts_when_it_commits(self, destination: Destination, sink: Sink) -> None:
        opened = message_of(1, transaction(7000, insert(self.events_table, b"2", None), committed_at=5, commits=False))
        closed = message_of(2, transaction(7000, insert(self.events_table, b"3", None), committed_at=5, first_ordinal=2))
        assert apply(sink, [[opened], [closed]]) == Applied(2, 7000, 5, STREAM_CREATED)
        assert destination.delivered() == events(1)

    def test_a_writer_can_be_sent_to_another_process(self, destination: Destination, sink: Sink) -> None:
        writer: PartitionWriter = pickle.loads(pickle.dumps(sink.writer()))
        receipts = [receipt for messages in self.batch([1], [2]) for receipt in write_partition(writer, messages)]
        assert sink.commit(receipts, STREAM_CREATED).sequence == 2
        assert destination.delivered() == events(2)

    def test_close_may_come_at_any_time(self, destination: Destination) -> None:
        sink = destination.new_sink()
        sink.close()
        sink.open()
        sink.close()
        sink.close()


def cut_off(messages: Iterable[MessageChanges]) -> Iterator[MessageChanges]:
    """Yields ``messages``, then the error of a reader."""
    yield from messages
    raise TransientError("the broker does not answer", "wait")


def broken_off(receipts: list[Receipt]) -> Iterator[Receipt]:
    """Yields all but the last receipt, then the error of a task."""
    yield from receipts[:-1]
    raise TransientError("the target does not answer", "wait")
