"""Units of whole transactions, which a task cuts itself.

A transaction that it sees only in part, or that is too large for a unit, is left to the driver (``unit_cutter``). Both
go there as blocks of a receipt's body, in order: the length, and a ``Unit`` or an ``Uncut``, pickled.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pgsluice.worker.sinks.nats.atomic_unit import Unit
from pgsluice.worker.sinks.nats.outgoing import MessageSection

UNIT_MESSAGES = 1000
"""Messages that nats-server accepts in one atomic batch by default."""
UNIT_BYTES = 16 * 1024 * 1024  # of several transactions

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Uncut:
    """Messages of one transaction, which ``begins`` with them or began before. Picklable."""

    messages: MessageSection
    begins: bool


class WholeTransactions:
    """Takes messages in sequence and yields blocks."""

    def __init__(self) -> None:
        self._whole = MessageSection()
        """Messages of transactions that have ended."""
        self._whole_bytes = 0
        self._open = MessageSection()
        """Messages of the open transaction."""
        self._open_bytes = 0
        self._is_left = True
        """The transaction that is open is left to the driver."""

    def add(self, messages: MessageSection, *, begins: bool, ends: bool) -> Iterator[bytes]:
        """``messages`` are of one transaction: the first ones of it, the last ones, both or neither."""
        if begins:
            self._is_left = False
        if self._is_left:
            if messages:
                yield from self._left(messages, begins=False)
            return
        self._open.extend(messages)
        self._open_bytes += messages.size
        if len(self._open) > UNIT_MESSAGES or self._open_bytes > UNIT_BYTES:
            yield from self._leave_open()
        elif ends:
            if len(self._whole) + len(self._open) > UNIT_MESSAGES or self._whole_bytes + self._open_bytes > UNIT_BYTES:
                yield from self._unit()
            self._whole.extend(self._open)
            self._whole_bytes += self._open_bytes
            self._open, self._open_bytes = MessageSection(), 0

    def rest(self) -> Iterator[bytes]:
        """Yields the rest; leaves the open transaction to the driver."""
        yield from self._leave_open()

    def _leave_open(self) -> Iterator[bytes]:
        left, self._open, self._open_bytes = self._open, MessageSection(), 0
        yield from self._left(left, begins=not self._is_left)
        self._is_left = True

    def _left(self, messages: MessageSection, *, begins: bool) -> Iterator[bytes]:
        yield from self._unit()
        if messages:
            yield from _encoded(Uncut(messages, begins))

    def _unit(self) -> Iterator[bytes]:
        if self._whole:
            yield from _encoded(Unit.of(self._whole))
            self._whole, self._whole_bytes = MessageSection(), 0


def decode_blocks(pieces: bytes) -> Iterator[Unit | Uncut]:
    offset = 0
    while offset < len(pieces):
        (length,) = _LENGTH.unpack_from(pieces, offset)
        offset += _LENGTH.size
        yield pickle.loads(memoryview(pieces)[offset : offset + length])  # noqa: S301  from our own tasks
        offset += length


def _encoded(block: Unit | Uncut) -> Iterator[bytes]:
    pickled = pickle.dumps(block, pickle.HIGHEST_PROTOCOL)
    yield _LENGTH.pack(len(pickled))
    yield pickled
