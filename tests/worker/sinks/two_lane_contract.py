"""What a sink promises that keeps a second place in the stream, for tables that are behind the others (``TwoLaneSink``)."""

from __future__ import annotations

from dataclasses import replace

from pgsluice.testing.batch import STREAM_CREATED, apply, apply_in
from pgsluice.testing.changes_builder import insert, message
from pgsluice.testing.tried_batches import EVENTS, position
from pgsluice.worker.sinks.abilities import TwoLaneSink
from pgsluice.worker.sinks.sink import Applied, CatchUp, Lane, Sink
from tests.worker.sinks.contract import Destination


class TwoLaneContract:
    """To be inherited beside ``SinkContract``, which has the fixtures."""

    def test_tables_that_are_behind_the_others_have_a_place_of_their_own(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        assert isinstance(sink, TwoLaneSink)
        apply(sink, [[message(1, insert(EVENTS, b"1", b"n"))]])
        for sequence in (2, 3):
            left = apply_in(sink, [[message(sequence, insert(EVENTS, b"%d" % sequence, b"n"))]], Lane.CHANGES, frozenset({7}))
        assert left == Applied(3, 3000, 3, STREAM_CREATED, catch_up=CatchUp(1, 1000, 1, frozenset({7})))
        sink.close()
        assert successor.open() == left
        behind = [message(2, insert(EVENTS, b"4", b"n"))]
        for _ in range(2):
            caught_up = apply_in(successor, [behind], Lane.CATCH_UP, frozenset({7}))
            assert caught_up == replace(left, catch_up=CatchUp(2, 2000, 2, frozenset({7})))
        joined = apply_in(successor, [[message(3, insert(EVENTS, b"5", b"n"))]], Lane.CATCH_UP, frozenset({7}))
        assert joined == apply(successor, [[message(3, insert(EVENTS, b"3", b"n"))]]) == position(3)
        assert sorted(destination.delivered()) == [1, 2, 3, 4, 5]
        successor.close()
        assert successor.open() == position(3)
