"""Messages for the target stream on their way from a task to the driver.

A receipt's body says from which place on its task wrote, then has a section for each message of the source that has any: the
number of messages, then for each of them what it ends and the lengths of its head and its data, then heads and data one after
the other. A head is the subject, the id and further headers. All integers are little-endian.

A *place* is where a message stands in its lane: of changes the position, of copied rows the sequence, the table's number in that
message and the row. What is at or before the place that the stream holds already is not written again.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from pgsluice.shared.wire.position import Position

_COUNT = struct.Struct("<I")
_SEPARATOR = b"\0"


class Ends(enum.IntEnum):
    """What is complete with a message."""

    NOTHING = 0
    """A chunk, or one of several messages that one change makes."""
    CHANGE = 1
    TRANSACTION = 2
    """Of copied rows, a row."""


class Outgoing(NamedTuple):
    """``headers`` are lines as in NATS's protocol, each with its end, the id's not among them."""

    subject: bytes
    message_id: bytes
    headers: bytes
    data: bytes
    ends: int


CopiedPlace = tuple[int, int, int]
"""The sequence in the snapshot stream, the number of the table in that message, and the row's in it."""


def change_id(position: Position) -> bytes:
    """Of a change; a further message of it has its number behind a slash."""
    return str(position).encode()


def replay_id(sequence: int) -> bytes:
    """Of a change that a dead letter held, by its sequence: the position was passed long ago."""
    return b"replay:%d:0:0" % sequence


def copied_id(place: CopiedPlace) -> bytes:
    return b"copy:%d:%d:%d" % place


def place_of(message_id: str) -> Position | CopiedPlace:
    """That of a replay is its letter's sequence. Raises ValueError for an id that is none of these."""
    kind, _, rest = message_id.partition(":")
    if kind in ("copy", "replay"):
        sequence, table, row = rest.partition("~")[0].partition("/")[0].split(":")
        return int(sequence), int(table), int(row)
    lsn, _, ordinal = message_id.rpartition(":")
    return Position.parse(f"{lsn}:{ordinal.partition('/')[0].partition('~')[0]}")


def chunk_id(message_id: bytes, index: int) -> bytes:
    return b"%b~%d" % (message_id, index)


@dataclass(slots=True)
class Section:
    """Messages in their order, as columns."""

    ends: bytearray = field(default_factory=bytearray)
    heads: list[bytes] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)

    def add(self, subject: bytes, message_id: bytes, data: bytes, ends: int, headers: bytes = b"") -> None:
        self.ends.append(ends)
        self.heads.append(b"%b\0%b\0%b" % (subject, message_id, headers))
        self.data.append(data)

    def encode(self) -> list[bytes]:
        """Pieces of a receipt's body; none when there are no messages."""
        count = len(self.heads)
        if not count:
            return []
        lengths = struct.pack(f"<{2 * count}I", *map(len, self.heads), *map(len, self.data))
        return [_COUNT.pack(count), bytes(self.ends), lengths, *self.heads, *self.data]


def decode_sections(body: bytes) -> Iterator[Outgoing]:
    """The messages of sections in order."""
    offset = 0
    while offset < len(body):
        (count,) = _COUNT.unpack_from(body, offset)
        offset += _COUNT.size
        ends = body[offset : offset + count]
        offset += count
        lengths = struct.unpack_from(f"<{2 * count}I", body, offset)
        offset += 8 * count
        borders = list(accumulate(lengths, initial=offset))
        for i in range(count):
            subject, message_id, headers = body[borders[i] : borders[i + 1]].split(_SEPARATOR)
            yield Outgoing(subject, message_id, headers, body[borders[count + i] : borders[count + i + 1]], ends[i])
        offset = borders[-1]


def with_start(start: str, pieces: Sequence[bytes]) -> bytes:
    """A receipt's body: ``pieces``, written from the place ``start`` on."""
    return b"".join([_COUNT.pack(len(start)), start.encode(), *pieces])


def split_start(body: bytes) -> tuple[str, bytes]:
    """The inverse of ``with_start``: the start and the sections."""
    (length,) = _COUNT.unpack_from(body)
    end = _COUNT.size + length
    return body[_COUNT.size : end].decode(), body[end:]
