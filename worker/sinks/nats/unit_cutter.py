"""Cuts units in the driver: from transactions that several tasks have parts of, or that are larger than a unit.

A unit holds whole source transactions, as many as one atomic batch takes. A transaction that is larger is cut between
two changes; each of its messages has the number of its part (``Pgsluice-Part``: ``1``, ``2``, …), messages of the last
part also the total (``3/3``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from pgsluice.worker.sinks.nats.atomic_unit import Unit
from pgsluice.worker.sinks.nats.outgoing import Ends, MessageSection
from pgsluice.worker.sinks.nats.whole_transactions import UNIT_BYTES, UNIT_MESSAGES, Uncut

LARGEST_UNIT_BYTES = 64 * 1024 * 1024  # of one transaction, which is cut beyond that


class UnitCutter:
    """``part`` is the number of parts that the transaction of the first message has already."""

    def __init__(self, part: int, most_messages: int = UNIT_MESSAGES) -> None:
        self.part = part
        """Number of parts of the transaction that is open at the end of the cut units."""
        self._most_messages = most_messages
        self._open = MessageSection()

    def cut(self, block: Unit | Uncut) -> Iterator[Unit]:
        """Yields units that are full, and keeps what is left."""
        if isinstance(block, Unit):
            yield from self.rest()
            yield block
            return
        if block.begins:
            self._end_transaction()
        self._open.extend(block.messages)
        while count := self._full():
            yield self._cut(count)

    def rest(self) -> Iterator[Unit]:
        """Yields the rest as a unit, if any: no transaction is open after it."""
        self._end_transaction()
        if self._open:
            yield self._cut(len(self._open))

    def _end_transaction(self) -> None:
        """Ends the source's transaction, if its last message did not because the end came in a message of the source
        without a change."""
        if self._open:
            self._open.ends[-1] = Ends.TRANSACTION
        else:
            self.part = 0

    def _full(self) -> int:
        """Returns the number of messages for a unit, whole transactions if possible; 0 while there is room for more. A
        change is never cut."""
        ends, sizes = self._open.ends, list(accumulate(map(len, self._open.data)))
        room = min(self._most_messages, bisect_right(sizes, UNIT_BYTES))
        if room >= len(ends):
            return 0
        whole = ends.rfind(Ends.TRANSACTION, 0, room) + 1
        if whole:
            return whole
        room = min(self._most_messages, bisect_right(sizes, LARGEST_UNIT_BYTES))
        one = ends.find(Ends.TRANSACTION, 0, room) + 1
        if one or room >= len(ends):
            return one if one < len(ends) else 0
        return ends.rfind(Ends.CHANGE, 0, room) + 1 or self._first_change(room)

    def _first_change(self, room: int) -> int:
        """Returns the number of messages of the first change, more than ``room``; 0 when nothing follows it yet."""
        found = [at for at in (self._open.ends.find(end, room) for end in (Ends.CHANGE, Ends.TRANSACTION)) if at >= 0]
        count = min(found, default=-1) + 1
        return count if count < len(self._open) else 0

    def _cut(self, count: int) -> Unit:
        messages = self._open.take(count)
        if messages.ends[-1] != Ends.TRANSACTION:
            self.part += 1
            messages.mark(b"Pgsluice-Part:%d\r\n" % self.part, count)
        elif self.part:
            parts, self.part = self.part + 1, 0
            messages.mark(b"Pgsluice-Part:%d/%d\r\n" % (parts, parts), messages.ends.index(Ends.TRANSACTION) + 1)
        return Unit.of(messages)
