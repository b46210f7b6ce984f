"""The filter ``operator: eq | ne | gt | lt | gte | lte``: a column's value compared with a constant, by the column's type.

NULL compares as in SQL: the answer is neither true nor false, so a row whose value is NULL passes neither ``eq`` nor ``ne``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pgsluice.rules.known_rows import tested_column
from pgsluice.rules.orderings import Ordering, labels_ordering, ordering_of
from pgsluice.rules.rule import Test, column_index
from pgsluice.shared.wire.table import Column, Table

_EQUALITY = ("eq", "ne")


@dataclass(frozen=True, slots=True)
class Comparison:
    """``value`` is the file's text, read by the column's type when that is known. ``labels`` are an enum's, in its
    order; None when the file does not name them."""

    column: str
    operator: str
    value: str
    ignore_case: bool = False
    labels: tuple[str, ...] | None = None

    @property
    def column_names(self) -> frozenset[str]:
        return frozenset((self.column,))

    def bind(self, table: Table) -> Test:
        index = column_index(table, self.column)
        ordering = self._ordering(table.columns[index])
        try:
            constant = ordering.constant(self.value)
        except ValueError as error:
            raise ValueError(
                f"column '{self.column}' is {table.columns[index].type_name}, and the value '{self.value}' {error}"
            ) from None
        return partial(tested_column, index=index, name=self.column, test=ordering.test(self.operator, constant))

    def _ordering(self, column: Column) -> Ordering:
        ordering = labels_ordering(self.labels) if self.labels is not None else ordering_of(column)
        if ordering is None:
            raise ValueError(f"column '{self.column}' is {column.type_name}, which cannot be compared")
        if self.ignore_case:
            if not ordering.is_text:
                raise ValueError(f"column '{self.column}' is {column.type_name}, which has no case to ignore")
            ordering = ordering.ignoring_case()
        if not ordering.has_order and self.operator not in _EQUALITY:
            raise ValueError(
                f"column '{self.column}' is {column.type_name}, which has no known sort order"
                " (for an enum, list the labels: 'order: [a, b]')"
            )
        return ordering
