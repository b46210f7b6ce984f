"""What the driver cuts: transactions that several tasks have parts of, or that are larger than a unit.

A unit holds whole source transactions, as many as one atomic batch takes. A transaction that is larger is cut between two
changes; each of its messages says in which part it is (``Pgsluice-Part``: ``1``, ``2``, …), those of the last part also how
many there are (``3/3``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgsluice.worker.sinks.nats.atomic_unit import Unit
from pgsluice.worker.sinks.nats.outgoing import Ends, Outgoing, Section
from pgsluice.worker.sinks.nats.whole_transactions import UNIT_BYTES, UNIT_MESSAGES, Uncut

LARGEST_UNIT_BYTES = 64 * 1024 * 1024  # of one transaction, which is cut beyond that

TRANSACTION = int(Ends.TRANSACTION)  # compared for every message


class UnitCutter:
    """``part`` is how many parts the transaction has already that goes on with the first message."""

    def __init__(self, part: int, most_messages: int = UNIT_MESSAGES) -> None:
        self.part = part
        """How many parts there are of the transaction that is open at the end of what was cut."""
        self._most_messages = most_messages
        self._open: list[Outgoing] = []
        self._bytes = 0
        self._whole = 0
        """So many of the open messages are whole transactions, with so many bytes."""
        self._changes = 0
        """So many are whole changes."""

    def cut(self, block: Unit | Uncut) -> Iterator[Unit]:
        """Yields units that are full, and keeps what is left."""
        if isinstance(block, Unit):
            self._end_transaction()
            if self._open:
                yield self._cut(len(self._open))
            yield block
            return
        if block.begins:
            self._end_transaction()
        yield from self._cut_messages(block.messages)

    def _cut_messages(self, messages: Sequence[Outgoing]) -> Iterator[Unit]:
        most = self._most_messages
        for message in messages:
            size, ends = len(message.data), message.ends
            if len(self._open) >= most or self._bytes + size > UNIT_BYTES:
                while self._is_full(size):
                    yield self._cut(self._whole or self._changes)
            self._open.append(message)
            self._bytes += size
            if ends:
                self._changes = len(self._open)
                if ends == TRANSACTION:
                    self._whole = self._changes

    def rest(self) -> list[Unit]:
        """What is left, as the last unit, if anything is: a batch ends between transactions."""
        self._end_transaction()
        return [self._cut(len(self._open))] if self._open else []

    def _end_transaction(self) -> None:
        """Of the source. Its last message did not say so when the end came in a message of the source without a change."""
        if self._open:
            self._open[-1] = self._open[-1]._replace(ends=TRANSACTION)
            self._whole = self._changes = len(self._open)
        else:
            self.part = 0

    def _is_full(self, size: int) -> bool:
        """Whether a message of that size is too much. A change is never cut."""
        limit = UNIT_BYTES if self._whole else LARGEST_UNIT_BYTES
        return bool(self._changes) and (len(self._open) >= self._most_messages or self._bytes + size > limit)

    def _cut(self, count: int) -> Unit:
        messages, self._open = self._open[:count], self._open[count:]
        self._bytes = sum(len(message.data) for message in self._open)
        is_whole = count <= self._whole
        self._whole, self._changes = max(0, self._whole - count), max(0, self._changes - count)
        return Unit.of(Section.of(self._marked(messages, is_whole=is_whole)))

    def _marked(self, messages: list[Outgoing], *, is_whole: bool) -> list[Outgoing]:
        if not is_whole:
            self.part += 1
            return [_with_part(message, b"%d" % self.part) for message in messages]
        if not self.part:
            return messages
        parts, self.part = self.part + 1, 0
        end = next(i for i, message in enumerate(messages, 1) if message.ends == TRANSACTION)
        return [_with_part(message, b"%d/%d" % (parts, parts)) for message in messages[:end]] + messages[end:]


def _with_part(message: Outgoing, part: bytes) -> Outgoing:
    return message._replace(headers=b"%bPgsluice-Part:%b\r\n" % (message.headers, part))
