"""Row frames to COPY text, all at once, with NumPy: a third of what reading value by value costs.

Behind its length and the eight bytes of its shape, a frame has a kind for each column and, for text, a length and the value
(manual: "Logical Replication Message Formats", TupleData). COPY text has the same values in the same order, with one byte
between them. So nothing is moved but together: of each head one byte becomes the tab, of each frame's length one becomes the
newline of the row before, and the other bytes are dropped.

NULL takes more room in COPY text than in a frame. It becomes one byte that no text has, and three when the rest is done.
"""

from __future__ import annotations

import numpy as np

from pgsluice.shared.rows.plain_rows import PlainRows

_HEAD_BYTES = 12  # a frame's length and shape
_TEXT, _NULL = b"tn"
_TAB, _NEWLINE = b"\t\n"
_NULL_MARK, _FIRST_NULL_MARK = b"\x01\x02"  # with a tab before it, and at the begin of a row
_FIRST_PRINTABLE = 0x20


def plain_rows(frames: bytes, lengths: list[int], width: int) -> PlainRows | None:
    """The rows of ``frames``, which have one shape, one image of ``width`` columns (at least one), and the given lengths.

    None when they are not plain: a value would need an escape or was not sent, or a frame is malformed.
    """
    source = np.frombuffer(frames + bytes(8), np.uint8)
    long_at = np.ndarray((len(source) - 3,), ">u4", source, 0, (1,))  # the number that begins at each byte
    ends = np.cumsum(np.array(lengths, np.int64) + 4)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    text = source[: len(frames) + 1].copy()
    kept = np.ones(len(text), np.bool_)
    for offset in range(1, _HEAD_BYTES):
        kept[starts + offset] = False
    kept[0] = False
    text[ends] = _NEWLINE
    position, nulls, first_nulls = starts + _HEAD_BYTES, 0, 0
    for column in range(width):
        if position.max() >= len(frames):
            return None
        kinds = source[position]
        is_text = kinds == _TEXT
        if is_text.all():
            heads, position = position, position + 5 + long_at[position + 1]
        else:
            is_null = kinds == _NULL
            if not (is_text | is_null).all():
                return None
            text[position[is_null]] = _NULL_MARK if column else _FIRST_NULL_MARK
            count = int(np.count_nonzero(is_null))
            nulls += count
            first_nulls += 0 if column else count
            heads, position = position[is_text], position + 1
            position[is_text] = heads + 5 + long_at[heads + 1]
        for offset in range(4):
            kept[heads + offset] = False
        if column:
            text[heads + 4] = _TAB
        else:
            kept[heads + 4] = False
    if not np.array_equal(position, ends):
        return None
    text = text[kept]
    if np.count_nonzero(text < _FIRST_PRINTABLE) != len(lengths) * width + first_nulls:
        return None  # a value has a tab, a line break or one of our marks in it
    copied = text.tobytes()
    if b"\\" in copied:
        return None
    if nulls:
        copied = copied.replace(b"%c" % _NULL_MARK, b"\t\\N").replace(b"%c" % _FIRST_NULL_MARK, b"\\N")
    return PlainRows(copied, width, nulls)
