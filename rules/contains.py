"""The filter ``operator: contains``: a text contains another one, an array has an element.

Of an array SQL's ``value = ANY (column)`` is asked: an array with a NULL among its elements and without the value is neither true
nor false.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

from pgsluice.rules.known_rows import tested_column
from pgsluice.rules.orderings import Key, Ordering, element_ordering, is_array, is_citext, is_searched_as_text
from pgsluice.rules.rule import RowImages, Test, column_index
from pgsluice.rules.truth import FALSE, NULL, TRUE, UNKNOWN
from pgsluice.rules.value_text import array_elements
from pgsluice.shared.wire.table import Column, Table


@dataclass(frozen=True, slots=True)
class Contains:
    """``value`` is a part of a text, or an element of an array, read by the element's type."""

    column: str
    value: str
    ignore_case: bool = False

    @property
    def column_names(self) -> frozenset[str]:
        return frozenset((self.column,))

    def bind(self, table: Table) -> Test:
        index = column_index(table, self.column)
        column = table.columns[index]
        if is_array(column):
            return self._array_test(index, column)
        if not is_searched_as_text(column):
            raise ValueError(f"column '{self.column}' is {column.type_name}, which contains no text")
        if self.ignore_case or is_citext(column):
            return partial(tested_column, index=index, name=self.column, test=partial(_contain_folded, self.value.casefold()))
        return partial(tested_column, index=index, name=self.column, test=partial(_contain, self.value.encode()))

    def _array_test(self, index: int, column: Column) -> Test:
        ordering = element_ordering(column)
        if ordering is None:
            raise ValueError(f"column '{self.column}' is {column.type_name}, whose elements cannot be compared")
        if self.ignore_case:
            if not ordering.is_text:
                raise ValueError(f"column '{self.column}' is {column.type_name}, which has no case to ignore")
            ordering = ordering.ignoring_case()
        try:
            element = ordering.constant(self.value)
        except ValueError as error:
            raise ValueError(f"column '{self.column}' is {column.type_name}, and the value '{self.value}' {error}") from None
        return partial(_has_element, index=index, name=self.column, ordering=ordering, element=element)


def _contain(part: bytes, values: Sequence[bytes]) -> bytes:
    return bytes(map(operator.contains, values, repeat(part)))


def _contain_folded(part: str, values: Sequence[bytes]) -> bytes:
    return bytes([part in value.decode().casefold() for value in values])


def _has_element(rows: RowImages, *, index: int, name: str, ordering: Ordering, element: Key) -> bytes:
    truths = bytearray()
    for row, value in enumerate(rows.column(index)):
        truth = NULL if value is None else UNKNOWN
        if isinstance(value, bytes):
            try:
                truth = _element_truth(value, ordering, element)
            except ValueError:
                rows.fail(row, f"column '{name}' holds a value that is not of its type")
        truths.append(truth)
    return bytes(truths)


def _element_truth(array: bytes, ordering: Ordering, element: Key) -> int:
    elements = array_elements(array)
    present = [value for value in elements if value is not None]
    if element in ordering.keys(present):
        return TRUE
    return FALSE if len(present) == len(elements) else NULL
