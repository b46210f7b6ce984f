"""The layout of messages from a walsender (manual: "Message Formats" and "Streaming Replication Protocol"): pure, no I/O.

A message is one byte for its kind, four of length, themselves included, and the content. While a walsender streams,
nearly all are CopyData, and what these carry has a kind too: XLogData is a header of 25 bytes and one pgoutput message,
the others are keepalives. Integers are big-endian.

    offset  0    'd'                   5    'w'                             30   pgoutput message
            1    length, u32           6    WAL start, WAL end, clock       31   of a row change: oid of its relation, u32
                                                                            40   of a logical message: its prefix, a zero byte

A logical message may have a GiB, and every role of the source may emit one. So the reader recognizes messages of other
prefixes by their heads, and keeps only the beginning of one that has pgsluice's prefix and is too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Self

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.position import LSN

COPY_DATA, COPY_DONE, COPY_BOTH_RESPONSE, COMMAND_COMPLETE, READY_FOR_QUERY, ERROR_RESPONSE = b"dcWCZE"
PASSED_OVER = frozenset(b"NSA")
"""Notices, parameters that were set again, notifications: they can come at any time and are ignored."""

QUERY = ord("Q")

KIND_OFFSET = 5
XLOG_DATA, _KEEPALIVE_KIND = b"wk"
FRAME_OFFSET = 30
_LOGICAL_MESSAGE = ord("M")
_PREFIX_OFFSET = 40

_HEAD = Struct(">BI")
_KNOWN = PASSED_OVER | {COPY_DATA, COPY_DONE, COPY_BOTH_RESPONSE, COMMAND_COMPLETE, READY_FOR_QUERY, ERROR_RESPONSE}
_KEEPALIVE = Struct(">xQqB")
_STATUS = Struct(">cQQQqB")
_LENGTH = Struct(">I")

_LONGEST_KNOWN = 4096  # so what is remembered of lengths stays below a megabyte
_NO_END = 1 << 62


@dataclass(frozen=True, slots=True)
class Keepalive:
    """``wal_end``: everything the publication has below it was sent before."""

    wal_end: LSN
    reply_requested: bool

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Raises WireError when ``content`` is no keepalive."""
        if len(content) != _KEEPALIVE.size or content[0] != _KEEPALIVE_KIND:
            raise WireError(f"the walsender sent {len(content)} bytes that are neither a change nor a keepalive")
        wal_end, _, reply_requested = _KEEPALIVE.unpack(content)
        return cls(LSN(wal_end), bool(reply_requested))


def encode_status(received: LSN, confirmed: LSN, clock_us: int, *, reply: bool) -> bytes:
    """Returns a standby status update; ``clock_us`` is in microseconds since 2000-01-01 UTC."""
    return _STATUS.pack(b"r", received, confirmed, confirmed, clock_us, reply)


def encode_message(kind: int, content: bytes | memoryview) -> bytes:
    """Returns a message of the protocol."""
    return b"".join((message_head(kind, len(content)), content))


def message_head(kind: int, size: int) -> bytes:
    """Returns the head of a message with ``size`` bytes of content."""
    return _HEAD.pack(kind, size + 4)


def message_end(data: bytes, start: int) -> int:
    """Returns the end of the message that begins at ``start``; -1 when ``data`` does not hold all of it."""
    if len(data) - start < _HEAD.size:
        return -1
    end = start + 1 + int.from_bytes(data[start + 1 : start + 5], "big")
    return end if start + _HEAD.size <= end <= len(data) else -1


def missing_bytes(cut_off: bytes) -> int:
    """Returns how many bytes, at least, the message lacks that begins with ``cut_off``. Raises ValueError when no
    message begins so."""
    if not cut_off:
        return 0
    if cut_off[0] not in _KNOWN:
        raise ValueError(f"a message of kind 0x{cut_off[0]:02x}")
    if len(cut_off) < _HEAD.size:
        return _HEAD.size - len(cut_off)
    size = int.from_bytes(cut_off[1:5], "big")
    if not 4 <= size < 1 << 31:
        raise ValueError(f"a message of {size} bytes")
    return 1 + size - len(cut_off)


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """The logical messages of a stream that are wanted: those of the prefix ``prefix``. A message with a content of more than
    ``most_bytes`` is cut to its first ``kept_bytes``."""

    prefix: bytes
    most_bytes: int
    kept_bytes: int

    def has(self, data: bytes, start: int) -> bool:
        """Returns whether the logical message at ``start`` is wanted. ``data`` holds its prefix at least."""
        return data.startswith(self.prefix + b"\0", start + _PREFIX_OFFSET)

    def beginning(self, cut_off: bytes) -> tuple[bytes, int]:
        """Returns, for the message that begins with ``cut_off``, the bytes to receive in its place, and how many of the
        bytes that follow to discard as they arrive. Returns nothing and 0 when the message has to be received, up to
        ``lacking_bytes``."""
        content_start = _PREFIX_OFFSET + len(self.prefix) + 5
        if not _is_logical_message(cut_off):
            return b"", 0
        rest_bytes = 1 + _LENGTH.unpack_from(cut_off, 1)[0] - len(cut_off)
        if self._is_foreign(cut_off):
            return b"", rest_bytes
        if len(cut_off) < content_start + self.kept_bytes or self._content_bytes(cut_off) <= self.most_bytes:
            return b"", 0
        head, content = cut_off[KIND_OFFSET : content_start - 4], cut_off[content_start : content_start + self.kept_bytes]
        return encode_message(COPY_DATA, head + _LENGTH.pack(len(content)) + content), rest_bytes

    def lacking_bytes(self, cut_off: bytes) -> int:
        """Returns the least number of bytes that ``cut_off`` lacks: of the message, or of what ``beginning`` has to know.
        Raises ValueError when no message begins so."""
        missing = missing_bytes(cut_off)
        content_start = _PREFIX_OFFSET + len(self.prefix) + 5
        if len(cut_off) <= FRAME_OFFSET:
            known = FRAME_OFFSET + 1
        elif not _is_logical_message(cut_off):
            return missing
        elif len(cut_off) < content_start:
            known = content_start
        else:
            known = content_start + self.kept_bytes if self._content_bytes(cut_off) > self.most_bytes else 0
        return min(missing, known - len(cut_off)) if known > len(cut_off) else missing

    def _is_foreign(self, cut_off: bytes) -> bool:
        head = self.prefix + b"\0"
        return not head.startswith(cut_off[_PREFIX_OFFSET : _PREFIX_OFFSET + len(head)])

    def _content_bytes(self, cut_off: bytes) -> int:
        size: int = _LENGTH.unpack_from(cut_off, _PREFIX_OFFSET + len(self.prefix) + 1)[0]
        return size


def _is_logical_message(cut_off: bytes) -> bool:
    kinds = (cut_off[0], cut_off[KIND_OFFSET], cut_off[FRAME_OFFSET]) if len(cut_off) > FRAME_OFFSET else ()
    return kinds == (COPY_DATA, XLOG_DATA, _LOGICAL_MESSAGE)


CHANGE_HEAD = Struct(">Q22x5s")
"""Head of a message with a row change: its first eight bytes, as ``FrameLengths`` knows them, and kind and relation of
the change."""


class FrameLengths(dict[int, tuple[int, bytes]]):
    """Maps the first eight bytes of an XLogData message (kind, length, kind, and of the WAL start two bytes that are
    nearly always the same), as a number, to the message's whole length, and the four bytes that precede its frame in a
    stream message. Maps any other eight bytes, and those of long messages, to a length that ends nowhere, and nothing.
    So a change costs one look-up instead of a dozen steps."""

    def __missing__(self, head: int) -> tuple[int, bytes]:
        length = 1 + (head >> 24 & 0xFFFFFFFF)
        if head >> 56 != COPY_DATA or head >> 16 & 0xFF != XLOG_DATA or not FRAME_OFFSET < length <= _LONGEST_KNOWN:
            return _NO_END, b""
        self[head] = found = length, _LENGTH.pack(length - FRAME_OFFSET)
        return found


def error_fields(content: bytes) -> dict[int, bytes]:
    """Returns the fields of an ErrorResponse, by the codes that ``psycopg.pq.DiagnosticField`` names."""
    return {field[0]: field[1:] for field in content.split(b"\0") if field}
