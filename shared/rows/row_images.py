"""Reads runs of row frames: frames that follow each other and begin with the same eight bytes, their *shape*.

Bodies are padded (PADDING), so that a frame's or a value's head can be unpacked where the shortest begins. Lengths are never
trusted: values are taken one after the other, and every row must end exactly where its frame ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.decoder import NULL, TEXT, value_without_bytes
from pgsluice.shared.wire.table import Value

FRAME = struct.Struct(">I8s")
"""A frame's length and first eight bytes."""
PADDING = bytes(FRAME.size)
_VALUE = struct.Struct(">BI")
"""A column value's kind and, when the kind is TEXT, its length."""


def measure_run(body: bytes, position: int, head: bytes) -> tuple[int, list[int]]:
    """Where the run ends that begins at ``position``, and the lengths of its frames. Looks at no value."""
    lengths: list[int] = []
    append, unpack_frame = lengths.append, FRAME.unpack_from
    length, frame_head = unpack_frame(body, position)
    while frame_head == head:
        append(length)
        position += 4 + length
        length, frame_head = unpack_frame(body, position)
    return position, lengths


def read_run(body: bytes, position: int, head: bytes, width: int, values: list[Value]) -> tuple[int, int]:
    """Appends the values of all frames of a run; returns where the next frame begins, and how many the run has."""
    append, unpack_frame, unpack_value, columns = values.append, FRAME.unpack_from, _VALUE.unpack_from, range(width)
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


def read_updates(
    body: bytes, position: int, head: bytes, new_image: bytes, width: int, old: list[Value], new: list[Value]
) -> tuple[int, int]:
    """The same for Updates with an old image; ``new_image`` is what the new one begins with, after it."""
    append_old, append_new, unpack_frame = old.append, new.append, FRAME.unpack_from
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
    """Appends one image's values; returns their end. ``read_run`` has the same loop inline: a call a row costs it a tenth."""
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
