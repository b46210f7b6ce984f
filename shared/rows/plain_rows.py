"""Rows available as COPY text: a sink that needs COPY text uses it unchanged, all others see columns.

Frames of rows become such text all at once, with NumPy: a third of what reading value by value costs. After its length
and the eight bytes of its shape, a frame has a kind for each column and, for text, a length and the value (manual:
"Logical Replication Message Formats", TupleData). COPY text has the same values in the same order, with one byte
between them. So nothing is moved but together: of each head one byte becomes the tab, of each frame's length one
becomes the line feed of the row before, and the other bytes are dropped.

NULL takes more room in COPY text than in a frame. It becomes one byte that no text has, and three when the rest is
done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, overload

import numpy as np

from pgsluice.shared.pgoutput.decoder import NULL, TEXT
from pgsluice.shared.rows.copy_text import NULL_FIELD, fields_of_rows, plain_fields
from pgsluice.shared.wire.table import Value

_TAB, _LINE_FEED = b"\t\n"
_SHAPE_BYTES = 8
_HEAD_BYTES = 4 + _SHAPE_BYTES  # a frame's length and shape
_NULL_MARK, _FIRST_NULL_MARK = b"\x01\x02"  # with a tab before it, and at the begin of a row
_FIRST_PRINTABLE = 0x20


class PlainRows(Sequence[list[Value]]):
    """One list of values per column, as in ``TableChanges.new``; each is made when it is asked for.

    ``text`` is COPY text: whole lines, in which ``\\N`` for NULL is the only escape. There are at most ``nulls`` of these. There
    is at least one column, and no value is UNCHANGED.
    """

    __slots__ = ("_fields", "_nulls", "_text", "_width")

    def __init__(self, text: bytes, width: int, nulls: int) -> None:
        self._text: bytes | None = text
        self._width = width
        self._nulls = nulls
        self._fields: list[bytes] = []

    @property
    def text(self) -> bytes:
        if self._text is None:
            text = np.frombuffer(bytearray(b"\t".join([*self._fields, b""])), np.uint8)
            text[np.flatnonzero(text == _TAB)[self._width - 1 :: self._width]] = _LINE_FEED
            self._text = text.tobytes()
        return self._text

    def __len__(self) -> int:
        return self._width

    @overload
    def __getitem__(self, index: int) -> list[Value]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Value]]: ...
    def __getitem__(self, index: int | slice) -> list[Value] | list[list[Value]]:
        if isinstance(index, slice):
            return [self._column(column) for column in range(self._width)[index]]
        return self._column(range(self._width)[index])

    def __iter__(self) -> Iterator[list[Value]]:
        return map(self._column, range(self._width))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def with_columns(self, columns: Mapping[int, Sequence[Value]]) -> PlainRows | None:
        """Returns the rows with other values in some columns; None when these would not be plain."""
        fields = list(self._split())
        nulls = self._nulls
        for index, values in columns.items():
            texts = plain_fields(values)
            if texts is None:
                return None
            nulls += texts is not values
            fields[index :: self._width] = texts
        return self._of(fields, nulls)

    def selected(self, kept: bytes | bytearray) -> PlainRows:
        """Returns the rows where ``kept`` is not 0."""
        of_fields = np.repeat(np.frombuffer(kept, np.uint8), self._width).tobytes()
        return self._of(list(compress(self._split(), of_fields)), self._nulls)

    def _of(self, fields: list[bytes], nulls: int) -> PlainRows:
        rows = PlainRows(b"", self._width, nulls)
        rows._text, rows._fields = None, fields
        return rows

    def _column(self, index: int) -> list[Value]:
        values: list[Value] = self._split()[index :: self._width]  # type: ignore[assignment]
        if self._nulls:
            values = [None if value == NULL_FIELD else value for value in values]
        return values

    def _split(self) -> list[bytes]:
        """Returns the fields of all rows, one after the other."""
        if not self._fields and self._text:
            self._fields = fields_of_rows(self._text)
        return self._fields


def with_columns(rows: Sequence[Sequence[Value]], columns: Mapping[int, Sequence[Value]]) -> Sequence[Sequence[Value]]:
    """Returns ``rows`` with other values in some columns; PlainRows stay such if they can."""
    if isinstance(rows, PlainRows):
        plain = rows.with_columns(columns)
        if plain is not None:
            return plain
    return [columns.get(index, column) for index, column in enumerate(rows)]


def selected(rows: Sequence[Sequence[Value]], kept: bytes | bytearray) -> Sequence[Sequence[Value]]:
    """Returns the rows where ``kept`` is not 0; PlainRows stay such."""
    if isinstance(rows, PlainRows):
        return rows.selected(kept)
    return [list(compress(column, kept)) for column in rows]


def rows_of_frames(frames: bytes, lengths: list[int], width: int) -> PlainRows | None:
    """Returns the rows of ``frames``, which have one shape, one image of ``width`` columns (at least one), and the
    given lengths.

    None when they are not plain: a value would need an escape or was not sent, or a frame is malformed.
    """
    if min(lengths) < _SHAPE_BYTES:
        return None
    source = np.frombuffer(frames + bytes(8), np.uint8)
    long_at = np.ndarray((len(source) - 3,), ">u4", source, 0, (1,))  # the number that begins at each byte
    ends = np.cumsum(np.array(lengths, np.int64) + 4)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    text = source[: len(frames) + 1].copy()
    kept = np.ones(len(text), np.bool_)
    for offset in range(1, _HEAD_BYTES):
        kept[starts + offset] = False
    kept[0] = False
    text[ends] = _LINE_FEED
    position, nulls, first_nulls = starts + _HEAD_BYTES, 0, 0
    for column in range(width):
        if position.max() >= len(frames):
            return None
        kinds = source[position]
        is_text = kinds == TEXT
        if is_text.all():
            heads, position = position, position + 5 + long_at[position + 1]
        else:
            is_null = kinds == NULL
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
    copied = _written_out(text[kept], separators=len(lengths) * width, first_nulls=first_nulls)
    return None if copied is None else PlainRows(copied, width, nulls)


def _written_out(text: np.ndarray[Any, np.dtype[np.uint8]], *, separators: int, first_nulls: int) -> bytes | None:
    """Returns ``text`` with its NULLs in COPY's form; None when a value needs an escape, or contains one of the marks.
    Each field has one control character, its separator or the mark for both, and a NULL at the begin of a row another
    one."""
    if np.count_nonzero(text < _FIRST_PRINTABLE) != separators + first_nulls:
        return None
    copied = text.tobytes()
    if b"\\" in copied:
        return None
    return copied.replace(b"%c" % _NULL_MARK, b"\t" + NULL_FIELD).replace(b"%c" % _FIRST_NULL_MARK, NULL_FIELD)
