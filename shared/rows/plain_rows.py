"""Rows that are at hand as COPY text: a sink that wants COPY text takes it as it is, everybody else sees columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import cast, overload

import numpy as np

from pgsluice.shared.wire.table import UNCHANGED, Value

_NULL = b"\\N"
_TAB, _LINE_FEED = b"\t\n"
_SPECIAL = b"\\\b\f\n\r\t\v"
"""What COPY text escapes (``copy_text``)."""


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
        """The same rows with other values in some columns; None when these would not be plain."""
        fields = list(self._split())
        nulls = self._nulls
        for index, values in columns.items():
            texts = _texts(values)
            if texts is None:
                return None
            nulls += texts is not values
            fields[index :: self._width] = texts
        return self._of(fields, nulls)

    def selected(self, kept: bytes | bytearray) -> PlainRows:
        """The rows where ``kept`` is not 0."""
        of_fields = np.repeat(np.frombuffer(kept, np.uint8), self._width).tobytes()
        return self._of(list(compress(self._split(), of_fields)), self._nulls)

    def _of(self, fields: list[bytes], nulls: int) -> PlainRows:
        rows = PlainRows(b"", self._width, nulls)
        rows._text, rows._fields = None, fields
        return rows

    def _column(self, index: int) -> list[Value]:
        values: list[Value] = self._split()[index :: self._width]  # type: ignore[assignment]
        if self._nulls:
            values = [None if value == _NULL else value for value in values]
        return values

    def _split(self) -> list[bytes]:
        """The fields of all rows one behind the other: to join them at once is much cheaper than row by row."""
        if not self._fields and self._text:
            self._fields = self._text.replace(b"\n", b"\t").split(b"\t")
            self._fields.pop()
        return self._fields


def _texts(values: Sequence[Value]) -> Sequence[bytes] | None:
    """As COPY text has them, ``values`` themselves when none is NULL; None when one of them is UNCHANGED or needs an escape."""
    try:
        together = b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        texts = [value for value in values if value is not None]
        if UNCHANGED in texts or _texts(texts) is None:
            return None
        return [_NULL if value is None else value for value in values]  # type: ignore[misc]
    return cast("Sequence[bytes]", values) if len(together.translate(None, _SPECIAL)) == len(together) else None


def with_columns(rows: Sequence[Sequence[Value]], columns: Mapping[int, Sequence[Value]]) -> Sequence[Sequence[Value]]:
    """``rows`` with other values in some columns; PlainRows stay such if they can."""
    if isinstance(rows, PlainRows):
        plain = rows.with_columns(columns)
        if plain is not None:
            return plain
    return [columns.get(index, column) for index, column in enumerate(rows)]


def selected(rows: Sequence[Sequence[Value]], kept: bytes | bytearray) -> Sequence[Sequence[Value]]:
    """The rows where ``kept`` is not 0; PlainRows stay such."""
    if isinstance(rows, PlainRows):
        return rows.selected(kept)
    return [list(compress(column, kept)) for column in rows]
