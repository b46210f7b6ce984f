"""The promises of every sink about batches of copied rows, as tests."""

from __future__ import annotations

import pickle

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.batch import (
    STREAM_CREATED,
    apply,
    apply_copied,
    write_copied,
    write_copied_partition,
)
from pgsluice.testing.changes_builder import copied, insert, message, restart, table
from pgsluice.testing.changes_contract import broken_off
from pgsluice.testing.destination import Destination
from pgsluice.testing.promises import Promise, asks
from pgsluice.testing.tried_batches import copied_position, events
from pgsluice.testing.tried_sink import TriedSink
from pgsluice.worker.sinks.sink import Applied, PartitionWriter, Sink


class CopyContract(TriedSink):
    """A part of ``SinkContract``."""

    @asks(Promise.COPIED_ROWS)
    def test_a_writer_of_copied_rows_can_be_sent_to_another_process(self, destination: Destination, sink: Sink) -> None:
        writer: PartitionWriter = pickle.loads(pickle.dumps(sink.writer()))
        receipts = [receipt for messages in self.copied_batch([1]) for receipt in write_copied_partition(writer, messages)]
        assert sink.commit(receipts, STREAM_CREATED) == copied_position(1)
        assert destination.delivered() == events(1)

    @asks(Promise.COPIED_ROWS)
    def test_copied_rows_are_delivered_and_move_their_own_position(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        assert apply_copied(sink, self.copied_batch([1, 2], [3])) == copied_position(3)
        assert destination.delivered() == events(3)
        sink.close()
        assert successor.open() == copied_position(3)

    @asks(Promise.COPIED_ROWS)
    def test_large_partitions_of_copied_rows_are_delivered_whole(self, destination: Destination, sink: Sink) -> None:
        assert apply_copied(sink, self.copied_batch(range(1, 20), range(20, 22), note=self.large_note)) == copied_position(21)
        assert destination.delivered() == events(21)

    @asks(Promise.COPIED_ROWS)
    def test_copied_rows_that_are_written_twice_are_delivered_once(self, destination: Destination, sink: Sink) -> None:
        first, second = self.copied_batch([1, 2], [3], note=self.large_note)
        write_copied(sink, [first])
        receipts = write_copied(sink, [first, second])
        write_copied(sink, [second])
        assert sink.commit(receipts, STREAM_CREATED) == copied_position(3)
        assert destination.delivered() == events(3)

    @asks(Promise.COPIED_ROWS)
    def test_copied_rows_that_are_committed_twice_are_delivered_once(self, destination: Destination, sink: Sink) -> None:
        apply_copied(sink, self.copied_batch([1, 2], [3]))
        assert apply_copied(sink, self.copied_batch([1, 2], [3])) == copied_position(3)
        assert destination.delivered() == events(3)

    @asks(Promise.COPIED_ROWS)
    def test_after_a_crash_between_write_and_commit_copied_rows_are_delivered_once(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        """The successor cuts batches otherwise."""
        apply_copied(sink, self.copied_batch([1]))
        write_copied(sink, self.copied_batch([2], [3, 4]))
        sink.close()
        assert successor.open() == copied_position(1)
        apply_copied(successor, self.copied_batch([2, 3]))
        assert apply_copied(successor, self.copied_batch([4], [5])) == copied_position(5)
        assert sorted(destination.delivered()) == events(5)

    @asks(Promise.COPIED_ROWS)
    def test_the_same_sink_applies_copied_rows_after_an_error_once(self, destination: Destination, sink: Sink) -> None:
        with pytest.raises(TransientError):
            sink.commit(broken_off(write_copied(sink, self.copied_batch([1], [2], [3]))), STREAM_CREATED)
        assert apply_copied(sink, self.copied_batch([1], [2], [3])) == copied_position(3)
        assert destination.delivered() == events(3)

    def test_of_two_processes_only_one_moves_the_position_of_the_copy(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        apply_copied(sink, self.copied_batch([1]))
        successor.open()
        apply_copied(successor, self.copied_batch([2]))
        with pytest.raises(TerminalError, match=self.taken_over or None):
            apply_copied(sink, self.copied_batch([2], [3]))
        successor.close()
        assert successor.open() == copied_position(2)

    @asks(Promise.COPIED_ROWS)
    def test_rows_that_were_copied_before_their_table_was_begun_anew_do_not_count(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        """A batch of them was written and not committed, too."""
        apply_copied(sink, self.copied_batch([1, 2], [3]))
        write_copied(sink, self.copied_batch([4]))
        sink.close()
        assert successor.open() == copied_position(3)
        apply_copied(successor, [[copied(4, table("public.others", "id bigint"), (b"1",))]])
        assert apply_copied(successor, [[restart(5, self.events_table)]]) == copied_position(5)
        assert destination.delivered() == []
        assert apply_copied(successor, [[restart(5, self.events_table)]]) == copied_position(5)
        apply_copied(successor, self.copied_batch([6], [7], snapshot="second"))
        assert destination.delivered() == [12, 13, 14, 15]

    def test_a_copy_without_rows_moves_the_position(self, destination: Destination, sink: Sink) -> None:
        assert apply_copied(sink, [[copied(1, self.events_table)]]) == copied_position(1)
        assert destination.delivered() == []

    @asks(Promise.COPIED_ROWS)
    def test_changes_go_on_after_the_copy(self, destination: Destination, sink: Sink, successor: Sink) -> None:
        apply_copied(sink, self.copied_batch([1], [2]))
        sink.finish_copy()
        after = message(1, insert(self.events_table, b"6", b"n"), insert(self.events_table, b"7", b"n"))
        assert apply(sink, [[after]]) == Applied(1, 1000, 1, STREAM_CREATED, snapshot_sequence=2)
        assert destination.delivered() == events(3)
        sink.close()
        assert successor.open() == Applied(1, 1000, 1, STREAM_CREATED, snapshot_sequence=2)

    @asks(Promise.COPIED_ROWS)
    def test_a_copy_may_be_finished_at_any_time(self, destination: Destination, sink: Sink) -> None:
        sink.finish_copy()
        apply_copied(sink, self.copied_batch([1]))
        sink.finish_copy()
        sink.finish_copy()
        assert apply_copied(sink, self.copied_batch([2])) == copied_position(2)
        assert destination.delivered() == events(2)
