"""The promises of a sink that keeps a second place in the stream, for lagging tables (``TwoLaneSink``)."""

from __future__ import annotations

from dataclasses import replace

from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.testing.batch import STREAM_CREATED, apply, apply_in
from pgsluice.testing.changes_builder import insert, message
from pgsluice.testing.destination import Destination
from pgsluice.testing.promises import Promise, asks
from pgsluice.testing.tried_batches import position
from pgsluice.testing.tried_sink import TriedSink
from pgsluice.worker.sinks.sink import Applied, CatchUp, Lane, Sink


class TwoLaneContract(TriedSink):
    """A part of ``SinkContract``."""

    @asks(Promise.CATCH_UP)
    def test_tables_that_are_behind_the_others_have_a_place_of_their_own(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        cohort = frozenset({7})
        apply(sink, [[self._event(1, 1)]])
        for sequence in (2, 3):
            left = apply_in(sink, [[self._event(sequence, sequence)]], Lane.CHANGES, cohort)
        assert left == Applied(3, 3000, 3, STREAM_CREATED, catch_up=CatchUp(1, 1000, 1, cohort))
        sink.close()
        assert successor.open() == left
        for _ in range(2):
            caught_up = apply_in(successor, [[self._event(2, 4)]], Lane.CATCH_UP, cohort)
            assert caught_up == replace(left, catch_up=CatchUp(2, 2000, 2, cohort))
        joined = apply_in(successor, [[self._event(3, 5)]], Lane.CATCH_UP, cohort)
        assert joined == apply(successor, [[self._event(3, 3)]]) == position(3)
        assert sorted(destination.delivered()) == [1, 2, 3, 4, 5]
        successor.close()
        assert successor.open() == position(3)

    def _event(self, sequence: int, id_: int) -> MessageChanges:
        return message(sequence, insert(self.events_table, b"%d" % id_, b"n"))
