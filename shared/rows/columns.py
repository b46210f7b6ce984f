"""Decodes a whole stream message into columns: the worker's hot path.

It reads the same messages as ``shared.pgoutput.decoder``, without an object per row: values are slices of the body. What makes
it fast: the first eight bytes of a row's frame are its *shape* (manual: "Logical Replication Message Formats"): the kind
(``I``, ``U``, ``D``), four bytes of relation oid, the first image (``N``, ``K``, ``O``) and two bytes of column count. What a
shape means is found out once, and consecutive frames of one shape are read by one inner loop (``row_images``). While a table has
rows of one shape only, and without old images, they are not even read: their frames are kept until the end of the part, and
then become COPY text all at once (``plain_rows``). Small transactions consist of single such frames, Begins and Commits; these
are taken where they are met.
"""

from __future__ import annotations

import functools
import struct
from typing import assert_never

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.decoder import BEGIN, COMMIT, decode_message
from pgsluice.shared.pgoutput.messages import (
    NO_OLD_ROW,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.rows.parts import FRAME, PADDING, MessageParts, RowShape, Transactions, measure_run, read_run, read_updates
from pgsluice.shared.wire.message import DDL_PREFIX, Descriptor

_LENGTH = struct.Struct(">I")
_BEGIN, _COMMIT = b"BC"
_ROWS = b"IUD"


def decode_changes(body: bytes, *, first_sequence: int, sequence: int, first_ordinal: int) -> MessageChanges:
    """Decodes the stream message at ``first_sequence`` to ``sequence`` (the same, unless it came in chunks).

    ``first_ordinal`` is the ordinal of its first change: above 1 when the message begins in the middle of a
    transaction. Raises WireError, and nothing else, on a body that is malformed, that holds changes outside a
    transaction, or whose Relation messages disagree with its descriptor.
    """
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        parts = MessageParts(Descriptor.decode(body[_LENGTH.size : start]).tables)
        transactions = Transactions(first_ordinal)
        change_count = _read_frames(body + PADDING, start, len(body), parts, transactions)
        ended = parts.end()
    except struct.error:
        raise WireError(f"a message body of {len(body)} bytes ends inside a frame") from None
    return MessageChanges(first_sequence, sequence, transactions.end(change_count), ended, change_count)


def _read_frames(body: bytes, position: int, size: int, parts: MessageParts, transactions: Transactions) -> int:
    """Reads the frames of the padded ``body`` up to ``size``; returns how many changes they hold."""
    unpack, deferrals, change_count, head_before = FRAME.unpack_from, parts.deferrals, 0, b""
    while position < size:
        length, head = unpack(body, position)
        kind = head[0]
        if head != head_before and head in deferrals and transactions.is_open:
            keep_frame, keep_length, keep_index = deferrals[head]
            end = position + _LENGTH.size + length
            keep_frame(body[position:end])
            keep_length(length)
            keep_index(change_count)
            position = end
            change_count += 1
        elif kind == _BEGIN and length == BEGIN.size:
            commit_lsn, committed_at, xid = BEGIN.unpack_from(body, position + _LENGTH.size)
            transactions.begin(commit_lsn, committed_at, xid, change_count)
            position += _LENGTH.size + length
        elif kind == _COMMIT and length == COMMIT.size:
            transactions.commit(COMMIT.unpack_from(body, position + _LENGTH.size)[1], change_count)
            position += _LENGTH.size + length
        elif kind in _ROWS:
            transactions.check_open()
            shape = parts.shapes.get(head) or parts.shape(head)
            position, count = _read_rows(body, position, shape, change_count)
            change_count += count
        else:
            start = position + _LENGTH.size
            position = start + length
            if position > size:
                break
            change_count += _take(body[start:position], change_count, parts, transactions)
        head_before = head
    if position != size:
        raise WireError(f"a message body of {size} bytes ends inside a frame")
    return change_count


_decode_message = functools.lru_cache(4096)(decode_message)  # every message repeats the Relation and Type messages that it needs


def _take(payload: bytes, change_index: int, parts: MessageParts, transactions: Transactions) -> int:
    """Takes a message that is not a row; returns how many changes it is, 0 or 1."""
    match _decode_message(payload):
        case Relation() as relation:
            parts.relate(relation)
        case Truncate() as truncate:
            transactions.check_open()
            parts.truncate(truncate, change_index)
            return 1
        case LogicalMessage(prefix=prefix, content=content) if prefix == DDL_PREFIX:
            transactions.check_open()
            parts.define(content, change_index)
            return 1
        case Type() | Origin() | LogicalMessage():
            pass
        case Begin() | Commit() | Insert() | Update() | Delete():
            raise AssertionError("the caller takes these itself")
        case unreachable:
            assert_never(unreachable)
    return 0


def _read_rows(body: bytes, position: int, shape: RowShape, change_index: int) -> tuple[int, int]:
    """Reads frames of one shape from ``position`` on, at least one; returns where the next begins, and their number."""
    rows = shape.rows
    if shape.old_kind == NO_OLD_ROW and rows.defers(shape):
        end, lengths = measure_run(body, position, shape.head)
        rows.defer(shape, body[position:end], lengths, change_index)
        return end, len(lengths)
    rows.read_deferred()
    if shape.old_kind == NO_OLD_ROW:
        position, count = read_run(body, position, shape.head, rows.width, rows.new)
    else:
        rows.align_old()
        if shape.operation == b"U":
            position, count = read_updates(body, position, shape.head, rows.new_image, rows.width, rows.old, rows.new)
        else:
            position, count = read_run(body, position, shape.head, rows.width, rows.old)
            rows.new += [None] * (count * rows.width)
    rows.add(shape, change_index, count)
    return position, count
