"""``all``, ``any`` and ``not`` of conditions, in SQL's three-valued logic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce

from pgsluice.rules.rule import RowCondition, RowImages, Test
from pgsluice.rules.truth import conjunction, disjunction, negation
from pgsluice.shared.wire.table import Table


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if all of its conditions are, at least one."""

    conditions: tuple[RowCondition, ...]

    @property
    def column_names(self) -> frozenset[str]:
        return _column_names(self.conditions)

    def bind(self, table: Table) -> Test:
        return partial(_all, tests=_bound(self.conditions, table))


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if any of its conditions is, at least one."""

    conditions: tuple[RowCondition, ...]

    @property
    def column_names(self) -> frozenset[str]:
        return _column_names(self.conditions)

    def bind(self, table: Table) -> Test:
        return partial(_any, tests=_bound(self.conditions, table))


@dataclass(frozen=True, slots=True)
class Not:
    condition: RowCondition

    @property
    def column_names(self) -> frozenset[str]:
        return self.condition.column_names

    def bind(self, table: Table) -> Test:
        return partial(_not, test=self.condition.bind(table))


def _column_names(conditions: tuple[RowCondition, ...]) -> frozenset[str]:
    return frozenset().union(*(condition.column_names for condition in conditions))


def _bound(conditions: tuple[RowCondition, ...], table: Table) -> list[Test]:
    """Raises ValueError with a sentence about each condition that does not fit the table."""
    tests, misfits = [], []
    for condition in conditions:
        try:
            tests.append(condition.bind(table))
        except ValueError as error:
            misfits.append(str(error))
    if misfits:
        raise ValueError("; ".join(misfits))
    return tests


def _all(rows: RowImages, *, tests: list[Test]) -> bytes:
    return reduce(conjunction, [test(rows) for test in tests])


def _any(rows: RowImages, *, tests: list[Test]) -> bytes:
    return reduce(disjunction, [test(rows) for test in tests])


def _not(rows: RowImages, *, test: Test) -> bytes:
    return negation(test(rows))
