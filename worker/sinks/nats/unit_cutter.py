"""Units: which messages become visible together.

A unit holds whole source transactions, as many as one atomic batch takes. A transaction that is larger is cut between two
changes; each of its messages says in which part it is (``Pgsluice-Part``: ``1``, ``2``, …), those of the last part also how
many there are (``3/3``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pgsluice.worker.sinks.nats.outgoing import Ends, Outgoing

UNIT_MESSAGES = 1000
"""What nats-server takes in one atomic batch, unless it is configured otherwise."""
UNIT_BYTES = 16 * 1024 * 1024  # of several transactions
LARGEST_UNIT_BYTES = 64 * 1024 * 1024  # of one, which is cut beyond that

TRANSACTION = int(Ends.TRANSACTION)  # compared for every message

Unit = list[Outgoing]


class UnitCutter:
    """``part`` is how many parts the transaction has already that goes on with the first message."""

    def __init__(self, part: int, most_messages: int = UNIT_MESSAGES) -> None:
        self.part = part
        """How many parts there are of the transaction that is open at the end of what was cut."""
        self._most_messages = most_messages
        self._open: Unit = []
        self._bytes = 0
        self._whole = 0
        """So many of the open messages are whole transactions, with so many bytes."""
        self._changes = 0
        """So many are whole changes."""

    def cut(self, messages: Iterable[Outgoing]) -> Iterator[Unit]:
        """Yields units that are full, and keeps what is left."""
        most = self._most_messages
        for message in messages:
            _, _, _, data, ends = message
            size = len(data)
            if len(self._open) >= most or self._bytes + size > UNIT_BYTES:
                while self._is_full(size):
                    yield self._cut(self._whole or self._changes)
            self._open.append(message)
            self._bytes += size
            if ends:
                self._changes = len(self._open)
                if ends == TRANSACTION:
                    self._whole = self._changes

    def rest(self) -> Unit:
        """What is left, as the last unit; empty when nothing is."""
        return self._cut(len(self._open))

    def _is_full(self, size: int) -> bool:
        """Whether a message of that size is too much. A change is never cut."""
        limit = UNIT_BYTES if self._whole else LARGEST_UNIT_BYTES
        return bool(self._changes) and (len(self._open) >= self._most_messages or self._bytes + size > limit)

    def _cut(self, count: int) -> Unit:
        unit, self._open = self._open[:count], self._open[count:]
        self._bytes = sum(len(message.data) for message in self._open)
        is_whole = count <= self._whole
        self._whole, self._changes = max(0, self._whole - count), max(0, self._changes - count)
        if is_whole and not self.part:
            return unit
        if not is_whole:
            self.part += 1
            return [_marked(message, b"%d" % self.part) for message in unit]
        parts, self.part = self.part + 1, 0
        end = next(i for i, message in enumerate(unit, 1) if message.ends == Ends.TRANSACTION)
        return [_marked(message, b"%d/%d" % (parts, parts)) for message in unit[:end]] + unit[end:]


def _marked(message: Outgoing, part: bytes) -> Outgoing:
    return message._replace(headers=b"%bPgsluice-Part:%b\r\n" % (message.headers, part))
