"""Decodes a whole stream message into columns: the worker's hot path.

It reads the same messages as ``shared.pgoutput.decoder``, without an object per row: values are slices of the body. What makes
it fast: the first eight bytes of a row's frame are its *shape* (manual: "Logical Replication Message Formats"): the kind
(``I``, ``U``, ``D``), four bytes of relation oid, the first image (``N``, ``K``, ``O``) and two bytes of column count. What a
shape means is found out once; consecutive frames of one shape are read by one inner loop into one list. Only an Update with an
old image has another image behind the first.

Lengths are never trusted: values are taken one behind the other, and every row must end exactly where its frame ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import assert_never

from shared.changes import NO_OLD_ROW, MessageChanges
from shared.errors import WireError
from shared.message import Descriptor
from shared.pgoutput.decoder import NULL, TEXT, decode_message, value_without_bytes
from shared.pgoutput.messages import (
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
from shared.pgoutput.parts import Parts, RowShape, TableRows, Transactions
from shared.table import Value

_LENGTH = struct.Struct(">I")
_FRAME = struct.Struct(">I8s")
"""A frame's length and first eight bytes."""
_VALUE = struct.Struct(">BI")
"""A column value's kind and, when the kind is TEXT, its length."""
_PADDING = bytes(_FRAME.size)
"""Stands behind the body, so that both can be unpacked where its shortest frame or value begins."""


def decode_changes(body: bytes, *, first_sequence: int, sequence: int, first_ordinal: int) -> MessageChanges:
    """What the stream message at ``first_sequence`` to ``sequence`` (the same, unless it came in chunks) holds.

    ``first_ordinal`` is the ordinal of its first change: above 1 when the message begins in the middle of a transaction. Raises
    WireError, and nothing else, on a body that is malformed, that holds changes outside a transaction, or whose Relation
    messages disagree with its descriptor.
    """
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        parts = Parts(Descriptor.decode(body[_LENGTH.size : start]).tables)
        transactions = Transactions(first_ordinal)
        change_count = _read_frames(body + _PADDING, start, len(body), parts, transactions)
    except struct.error:
        raise WireError(f"a message body of {len(body)} bytes ends inside a frame") from None
    return MessageChanges(first_sequence, sequence, transactions.end(change_count), parts.end(), change_count)


def _read_frames(body: bytes, position: int, size: int, parts: Parts, transactions: Transactions) -> int:
    """Reads the frames of the padded ``body`` up to ``size``; returns how many changes they hold."""
    unpack, shapes, change_count = _FRAME.unpack_from, parts.shapes, 0
    while position < size:
        length, head = unpack(body, position)
        if head[0] in b"IUD":
            transactions.check_open()
            shape = shapes.get(head) or parts.shape(head)
            position, count = _read_rows(body, position, shape)
            shape.rows.add(shape, change_count, count)
            change_count += count
        else:
            start = position + _LENGTH.size
            position = start + length
            if position > size:
                break
            change_count += _take(body[start:position], change_count, parts, transactions)
    if position != size:
        raise WireError(f"a message body of {size} bytes ends inside a frame")
    return change_count


def _take(payload: bytes, change_index: int, parts: Parts, transactions: Transactions) -> int:
    """Takes a message that is not a row; returns how many changes it is, 0 or 1."""
    match decode_message(payload):
        case Begin() as begin:
            transactions.begin(begin, change_index)
        case Commit() as commit:
            transactions.commit(commit, change_index)
        case Relation() as relation:
            parts.relate(relation)
        case Truncate() as truncate:
            transactions.check_open()
            parts.truncate(truncate, change_index)
            return 1
        case Type() | Origin() | LogicalMessage():
            pass
        case Insert() | Update() | Delete():
            raise AssertionError("the caller reads rows itself")
        case unreachable:
            assert_never(unreachable)
    return 0


def _read_rows(body: bytes, position: int, shape: RowShape) -> tuple[int, int]:
    """Reads frames of one shape from ``position`` on, at least one; returns where the next begins, and their number."""
    rows = shape.rows
    if shape.old_kind == NO_OLD_ROW:
        return _read_run(body, position, shape.head, rows.width, rows.new)
    rows.align_old()
    if shape.operation == b"U":
        return _read_updates(body, position, shape.head, rows)
    position, count = _read_run(body, position, shape.head, rows.width, rows.old)
    rows.new += [None] * (count * rows.width)
    return position, count


def _read_run(body: bytes, position: int, head: bytes, width: int, values: list[Value]) -> tuple[int, int]:
    """Appends the values of all frames that follow each other and begin with ``head``."""
    append, unpack_frame, unpack_value, columns = values.append, _FRAME.unpack_from, _VALUE.unpack_from, range(width)
    count = 0
    length, frame_head = unpack_frame(body, position)
    while frame_head == head:
        end = position + 4 + length
        position += 12
        for _ in columns:
            kind, size = unpack_value(body, position)
            if kind == TEXT:
                position += 5
                append(body[position : (position := position + size)])
            else:
                position += 1
                append(None if kind == NULL else value_without_bytes(kind))
        if position != end:
            raise _misfit(length)
        count += 1
        length, frame_head = unpack_frame(body, position)
    return position, count


def _read_updates(body: bytes, position: int, head: bytes, rows: TableRows) -> tuple[int, int]:
    """The same for Updates with an old image, which comes before the new one."""
    new_image, width, unpack_frame = rows.new_image, rows.width, _FRAME.unpack_from
    append_old, append_new = rows.old.append, rows.new.append
    count = 0
    length, frame_head = unpack_frame(body, position)
    while frame_head == head:
        end = position + 4 + length
        position = _read_image(body, position + 12, width, append_old)
        if body[position : position + 3] != new_image:
            raise _misfit(length)
        position = _read_image(body, position + 3, width, append_new)
        if position != end:
            raise _misfit(length)
        count += 1
        length, frame_head = unpack_frame(body, position)
    return position, count


def _read_image(body: bytes, position: int, width: int, append: Callable[[Value], None]) -> int:
    """Appends one image's values; returns their end. ``_read_run`` has the same loop inline: a call a row costs it a tenth."""
    unpack_value = _VALUE.unpack_from
    for _ in range(width):
        kind, size = unpack_value(body, position)
        if kind == TEXT:
            position += 5
            append(body[position : (position := position + size)])
        else:
            position += 1
            append(None if kind == NULL else value_without_bytes(kind))
    return position


def _misfit(length: int) -> WireError:
    return WireError(f"the columns of a row do not fill its frame of {length} bytes exactly")
