"""The types of rules, and the result of applying them to changes.

A rule is a *transform*, which replaces the values of some columns, or a *filter*, which decides whether a row is
wanted. Rules of a table apply in file order, and each sees what the ones before it made. They know three kinds of
values, as everything here does: text, NULL, and UNCHANGED, which is an unknown value.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple, Protocol

from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, TableChanges
from pgsluice.shared.wire.table import Column, NamePattern, Table, Value

OPERATIONS = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
ALL_OPERATIONS = frozenset(OPERATIONS.values())


class RejectedRow(NamedTuple):
    """A change that a rule could not process. ``rule`` names file, line, table and rule; ``reason`` holds no row value."""

    change_index: int
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """``changes`` are the wanted rows, transformed, in the order they came; None without any. A row of ``rejected`` is
    not among them; a row that is in neither was filtered out."""

    changes: TableChanges | None
    rejected: list[RejectedRow]


class Transformed(NamedTuple):
    """One value for each one given. ``failures`` holds, by index, the reasons why values could not be transformed;
    their places in ``values`` must not be used."""

    values: Sequence[bytes]
    failures: dict[int, str]


class ValueTransformation(Protocol):
    """A pure function of a value. The same value always becomes the same, so that a row is found again by what it became."""

    @property
    def name(self) -> str:
        """The name in rules files."""
        ...

    def check_column(self, column: Column) -> None:
        """Raises ValueError, with the end of a sentence that begins with the column's name, when it cannot be transformed."""
        ...

    def apply(self, values: Sequence[bytes]) -> Transformed: ...


class RowImages(Protocol):
    """The old or the new rows of some changes, as far as they are known."""

    def __len__(self) -> int: ...

    def column(self, index: int) -> Sequence[Value]:
        """Returns one value for each row; UNCHANGED where it is not known."""
        ...

    def fail(self, row: int, reason: str) -> None:
        """Records that the row holds a value that is not of its column's type."""
        ...


Test = Callable[[RowImages], bytes]
"""One set of truth values (``rules.truth``) for each row."""


class RowCondition(Protocol):
    """The condition of a filter."""

    @property
    def column_names(self) -> frozenset[str]: ...

    def bind(self, table: Table) -> Test:
        """Raises ValueError, with a sentence, when a column is missing or its type does not fit."""
        ...


def column_index(table: Table, name: str) -> int:
    """Raises ValueError, with a sentence, when the table has no such column."""
    names = [column.name for column in table.columns]
    if name not in names:
        raise ValueError(f"there is no column '{name}'{_suggestion(name, names)}")
    return names.index(name)


def _suggestion(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


class Unlisted(enum.IntEnum):
    """The treatment of columns of a table that no rule names, and that are not listed as kept. The strictest applies."""

    KEEP = 0
    NULL = 1
    """Their values do not leave: NULL takes their place."""
    REFUSE = 2
    """The worker stops."""


@dataclass(frozen=True, slots=True)
class Transform:
    """``keeps_unique``: its author promises that different values stay different, so it may change a key. ``is_optional``: its
    column need not be there, as one that is still to come."""

    place: str = field(compare=False)
    operations: frozenset[int]
    columns: NamePattern
    transformation: ValueTransformation
    keeps_unique: bool
    is_optional: bool = False

    @property
    def named(self) -> tuple[NamePattern, ...]:
        """The columns that the rule speaks of."""
        return (self.columns,)


@dataclass(frozen=True, slots=True)
class Filter:
    """``drops_unknown_deletes``: a DELETE is dropped if its old row does not determine whether the filter held. Else it
    continues, because the row may exist. ``is_optional``: while a column of its condition does not exist, every row
    passes."""

    place: str = field(compare=False)
    operations: frozenset[int]
    condition: RowCondition
    drops_unknown_deletes: bool
    is_optional: bool = False

    @property
    def named(self) -> tuple[NamePattern, ...]:
        """The columns that the rule speaks of."""
        return tuple(map(NamePattern.exact, sorted(self.condition.column_names)))


Rule = Transform | Filter
