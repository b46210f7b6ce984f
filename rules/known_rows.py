"""The old and the new rows of changes, as far as they follow from the sent values.

An UPDATE sends less than two rows. What is not sent may follow: a value that an update left UNCHANGED is the old row's,
when that was sent, and an update without an old row did not change the columns of the replica identity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

from pgsluice.rules.bounds import RuleBudget
from pgsluice.rules.rule import RowImages
from pgsluice.rules.truth import NULL, OF_BOOLEANS, UNKNOWN
from pgsluice.shared.pgoutput.messages import OLD_KEY, OLD_ROW
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Value

TestValues = Callable[[Sequence[bytes]], bytes]
"""One byte for each value, 0 or 1. Raises ValueError when one of them is not of the column's type."""


class KnownRows(ABC):
    """One image of the rows of some changes. ``failures`` collects calls of ``fail``. ``budget`` is asked for each
    column."""

    def __init__(self, changes: TableChanges, budget: RuleBudget | None = None) -> None:
        self._changes = changes
        self._budget = budget
        self.failures: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._changes)

    def fail(self, row: int, reason: str) -> None:
        self.failures.setdefault(row, reason)

    def column(self, index: int) -> Sequence[Value]:
        if self._budget is not None:
            self._budget.check()
        return self._known(index)

    @abstractmethod
    def _known(self, index: int) -> Sequence[Value]: ...


class NewRows(KnownRows):
    """The new rows; NULLs for a DELETE, which must be ignored."""

    def _known(self, index: int) -> Sequence[Value]:
        values = self._changes.new[index]
        if self._changes.old is None or all_present(values) or UNCHANGED not in values:
            return values
        return completed_column(self._changes, index)


class OldRows(KnownRows):
    """The old rows; the values for an INSERT must be ignored."""

    def _known(self, index: int) -> Sequence[Value]:
        changes, column = self._changes, self._changes.table.columns[index]
        is_key = column.identity_key and changes.table.replica_identity is not ReplicaIdentity.FULL
        if changes.old is None or changes.old_kinds is None:
            return changes.new[index] if is_key else [UNCHANGED] * len(changes)
        old, kinds = changes.old[index], changes.old_kinds
        if kinds.count(OLD_ROW) == len(kinds):
            return old
        new: Sequence[Value] = changes.new[index] if is_key else (UNCHANGED,) * len(changes)
        told = _kinds_that_tell(changes, index)
        return [was if kind in told else value for was, value, kind in zip(old, new, kinds, strict=True)]


def completed_column(changes: TableChanges, index: int) -> Sequence[Value]:
    """Returns the column's new values, each UNCHANGED one replaced by the old row's as far as that was sent."""
    if changes.old is None or changes.old_kinds is None:
        return changes.new[index]
    told = _kinds_that_tell(changes, index)
    return [
        was if value is UNCHANGED and kind in told else value
        for value, was, kind in zip(changes.new[index], changes.old[index], changes.old_kinds, strict=True)
    ]


def _kinds_that_tell(changes: TableChanges, index: int) -> tuple[int, ...]:
    """Returns the kinds of old row that hold the column."""
    return (OLD_ROW, OLD_KEY) if changes.table.columns[index].identity_key else (OLD_ROW,)


def all_present(values: Sequence[Value]) -> bool:
    """Returns whether there is neither NULL nor UNCHANGED among them. Joining is the fastest way to ask: it takes bytes
    only.
    """
    try:
        b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def tested_column(rows: RowImages, index: int, name: str, test: TestValues) -> bytes:
    """Returns the truth of ``test`` for each row: NULL for NULL, UNKNOWN where the value is not known. A row whose
    value is not of its type fails, and is UNKNOWN."""
    values = rows.column(index)
    present = cast("Sequence[bytes]", values) if all_present(values) else [value for value in values if isinstance(value, bytes)]
    try:
        truths = test(present).translate(OF_BOOLEANS)
    except ValueError:
        return _tested_one_by_one(rows, values, name, test)
    if len(present) == len(values):
        return truths
    known = iter(truths)
    return bytes([next(known) if isinstance(value, bytes) else NULL if value is None else UNKNOWN for value in values])


def _tested_one_by_one(rows: RowImages, values: Sequence[Value], name: str, test: TestValues) -> bytes:
    truths = bytearray()
    for row, value in enumerate(values):
        truth = NULL if value is None else UNKNOWN
        if isinstance(value, bytes):
            try:
                truth = test([value]).translate(OF_BOOLEANS)[0]
            except ValueError:
                rows.fail(row, f"column '{name}' holds a value that is not of its type")
        truths.append(truth)
    return bytes(truths)
