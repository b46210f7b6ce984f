"""Messages for the target stream on their way from a task to the driver.

A receipt's body begins with the place from which its task wrote, then has blocks (``whole_transactions``).

A *place* is where a message is in its lane: of changes the position, of copied rows the sequence, the table's number in
that message and the row. Messages at or before the place that the stream holds already are not written again.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pgsluice.shared.wire.position import Position

_COUNT = struct.Struct("<I")


class Ends(enum.IntEnum):
    """The unit that is complete with a message."""

    NOTHING = 0
    """A chunk, or one of several messages that one change makes."""
    CHANGE = 1
    TRANSACTION = 2
    """Last message of a transaction; for copied rows, of a row."""


class Outgoing(NamedTuple):
    """``headers`` are lines as in NATS's protocol, each with its end, the id's not among them."""

    subject: bytes
    message_id: bytes
    headers: bytes
    data: bytes
    ends: int


CopiedPlace = tuple[int, int, int]
"""The sequence in the snapshot stream, the number of the table in that message, and the row's in it."""


def replay_id(sequence: int) -> bytes:
    """Returns the id of a change from a dead letter, by its sequence: the position was passed long ago."""
    return b"replay:%d:0:0" % sequence


def copied_id(place: CopiedPlace) -> bytes:
    return b"copy:%d:%d:%d" % place


def place_of(message_id: str) -> Position | CopiedPlace:
    """Returns the place of a message; a replay's is its dead letter's sequence. Raises ValueError for another id."""
    kind, _, rest = message_id.partition(":")
    if kind in ("copy", "replay"):
        sequence, table, row = rest.partition("~")[0].partition("/")[0].split(":")
        return int(sequence), int(table), int(row)
    lsn, _, ordinal = message_id.rpartition(":")
    return Position.parse(f"{lsn}:{ordinal.partition('/')[0].partition('~')[0]}")


def chunk_id(message_id: bytes, index: int) -> bytes:
    return b"%b~%d" % (message_id, index)


@dataclass(slots=True)
class MessageSection:
    """Messages in their order, as columns."""

    subjects: list[bytes] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    ends: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> int:
        """Bytes of data."""
        return sum(map(len, self.data))

    def add(self, subject: bytes, message_id: bytes, data: bytes, ends: int, headers: bytes = b"") -> None:
        self.subjects.append(subject)
        self.ids.append(message_id)
        self.headers.append(headers)
        self.data.append(data)
        self.ends.append(ends)

    def add_lines(self, subjects: Iterable[bytes], ids: Iterable[bytes], lines: Sequence[bytes]) -> None:
        """Adds messages of one change each; the line feed at the end of a line is not part of its message."""
        self.subjects += subjects
        self.ids += ids
        self.headers += [b""] * len(lines)
        self.data += [line[:-1] for line in lines]
        self.ends += bytes([Ends.CHANGE]) * len(lines)

    def extend(self, other: MessageSection) -> None:
        self.subjects += other.subjects
        self.ids += other.ids
        self.headers += other.headers
        self.data += other.data
        self.ends += other.ends

    def message(self, index: int) -> Outgoing:
        return Outgoing(self.subjects[index], self.ids[index], self.headers[index], self.data[index], self.ends[index])

    def take(self, count: int) -> MessageSection:
        """Removes and returns the first so many messages."""
        taken = MessageSection(
            self.subjects[:count], self.ids[:count], self.headers[:count], self.data[:count], self.ends[:count]
        )
        for column in (self.subjects, self.ids, self.headers, self.data, self.ends):
            del column[:count]
        return taken

    def mark(self, header: bytes, count: int) -> None:
        """Gives the first so many another header."""
        self.headers[:count] = [headers + header for headers in self.headers[:count]]


def encode_start(start: str) -> bytes:
    """Returns the begin of a receipt's body whose task wrote from the place ``start`` on."""
    return _COUNT.pack(len(start)) + start.encode()


def split_start(body: bytes) -> tuple[str, bytes]:
    """Returns the start of a receipt's body, and the rest of it."""
    (length,) = _COUNT.unpack_from(body)
    end = _COUNT.size + length
    return body[_COUNT.size : end].decode(), body[end:]
