"""The promises of a sink whose destination can refuse single changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.rows.changes import MessageChanges, Part, TableChanges
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.batch import Batch, apply
from pgsluice.testing.destination import RefusingDestination
from pgsluice.testing.promises import Promise, asks
from pgsluice.testing.tried_batches import events, position
from pgsluice.testing.tried_sink import TriedSink
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.sink import Applied, Sink


class RejectingContract(TriedSink):
    """A part of ``SinkContract``: the fixture ``destination`` is a RefusingDestination."""

    @asks(Promise.REFUSALS)
    def test_refused_changes_are_named_and_the_rest_is_delivered(
        self, destination: RefusingDestination, sink: Sink, successor: Sink
    ) -> None:
        """Repeats passes; named changes are left out of later ones."""
        apply(sink, self.batch([1]))
        destination.refuse(5, 8)
        rejected: set[Position] = set()
        while True:
            try:
                applied = apply_until_told(sink, [[without(each, rejected) for each in part] for part in self.batch([2, 3], [4])])
                break
            except RejectedChanges as refusal:
                named = {rejection.position for rejection in refusal.rejections}
                assert named, "at least one, or the batch would be repeated indefinitely"
                assert not named & rejected, "rows outside the batch cannot be refused"
                rejected |= named
                if self.is_exactly_once:
                    assert destination.delivered() == events(1)
        assert rejected == {Position(LSN(2000), 2), Position(LSN(4000), 1)}
        assert applied == position(4)
        assert destination.delivered() == [2, 3, 4, 6, 7, 9]
        sink.close()
        assert successor.open() == position(4)

    @asks(Promise.REFUSALS)
    def test_rejected_changes_leave_the_position(self, destination: RefusingDestination, sink: Sink, successor: Sink) -> None:
        """A case: the worker is killed before it has made dead letters of them."""
        apply(sink, self.batch([1]))
        destination.refuse(4)
        with pytest.raises(RejectedChanges):
            apply_until_told(sink, self.batch([2], [3]))
        sink.close()
        assert successor.open() == position(1)


def apply_until_told(sink: Sink, changes: Batch) -> Applied:
    """Applies the changes as often as the sink raises WriteAgain."""
    while True:
        try:
            return apply(sink, changes)
        except WriteAgain:
            continue


def without(changes: MessageChanges, rejected: set[Position]) -> MessageChanges:
    """Returns ``changes`` without the rejected ones."""
    gone = {
        index
        for transaction in changes.transactions
        for index in range(transaction.first_change, transaction.end_change)
        if transaction.position(index) in rejected
    }
    # a single kind: the batches of the contract hold rows
    parts = [part for part in changes.parts if isinstance(part, TableChanges)]
    kept: list[Part] = [part.select([row for row, at in enumerate(part.change_indexes) if at not in gone]) for part in parts]
    return replace(changes, parts=kept)
