"""Rows that are at hand as COPY text: a sink that wants COPY text takes it as it is, everybody else sees columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from shared.table import Value

_NULL = b"\\N"


class PlainRows(Sequence[list[Value]]):
    """One list of values per column, as in ``TableChanges.new``; made when the first one is asked for.

    ``text`` is COPY text: whole lines, in which ``\\N`` for NULL is the only escape. ``nulls`` counts them. There is at least one
    column, and no value is UNCHANGED.
    """

    __slots__ = ("_columns", "_nulls", "_width", "text")

    def __init__(self, text: bytes, width: int, nulls: int) -> None:
        self.text = text
        self._width = width
        self._nulls = nulls
        self._columns: list[list[Value]] | None = None

    def __len__(self) -> int:
        return self._width

    @overload
    def __getitem__(self, index: int) -> list[Value]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Value]]: ...
    def __getitem__(self, index: int | slice) -> list[Value] | list[list[Value]]:
        return self._split()[index]

    def __iter__(self) -> Iterator[list[Value]]:
        return iter(self._split())

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _split(self) -> list[list[Value]]:
        if self._columns is None:
            values: list[Value] = self.text.replace(b"\n", b"\t").split(b"\t")  # type: ignore[assignment]
            values.pop()
            if self._nulls:
                values = [None if value == _NULL else value for value in values]
            self._columns = [values[column :: self._width] for column in range(self._width)]
        return self._columns
