"""What filters make of a change: it goes on, it is dropped, or it goes on as another operation.

    operation   the old row passes   the new row passes   outcome
    INSERT                           yes                  KEEP
    INSERT                           no                   DROP
    DELETE      yes, or unknown                           KEEP
    DELETE      no                                        DROP
    UPDATE      yes, or unknown      yes                  KEEP
    UPDATE      no                   yes                  AS_INSERT   the row enters
    UPDATE      yes, or unknown      no                   AS_DELETE   the row leaves, or may have left
    UPDATE      no                   no                   DROP
    UPDATE      unknown              unknown              KEEP
    otherwise                                             UNDECIDED

A delete of a row that is not there does no harm, so where the old row is unknown a DELETE is sent to be safe. An UPDATE whose
new row passes is right to apply whether the row was there or not, if all of its values were sent. An update that leaves both rows
unknown did not touch the value that the filter asks for: a row that was there before stays, one that was not is not there now.
(A filter that asks for several values may be wrong there, about those that did change: it needs REPLICA IDENTITY FULL.)
"""

from __future__ import annotations

import enum
from typing import assert_never

from pgsluice.rules.truth import TRUE, UNKNOWN
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY, OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, TableChanges
from pgsluice.shared.wire.table import UNCHANGED, Value

_FULL_IDENTITY = "a source table with REPLICA IDENTITY FULL would send it"


class FilterOutcome(enum.IntEnum):
    DROP = 0
    KEEP = 1
    AS_INSERT = 2
    AS_DELETE = 3
    UNDECIDED = 4


class _Passes(enum.IntEnum):
    NO = 0
    MAYBE = 1
    YES = 2


def _passes(truths: int) -> _Passes:
    """Only TRUE lets a row pass."""
    if truths == TRUE:
        return _Passes.YES
    return _Passes.MAYBE if truths & TRUE else _Passes.NO


def _outcome(operation: int, old: _Passes, new: _Passes) -> FilterOutcome:
    if operation == DELETE:
        return FilterOutcome.DROP if old is _Passes.NO else FilterOutcome.KEEP
    if operation == INSERT:
        return (FilterOutcome.DROP, FilterOutcome.UNDECIDED, FilterOutcome.KEEP)[new]
    if new is _Passes.YES:
        return FilterOutcome.AS_INSERT if old is _Passes.NO else FilterOutcome.KEEP
    if new is _Passes.NO:
        return FilterOutcome.DROP if old is _Passes.NO else FilterOutcome.AS_DELETE
    return FilterOutcome.KEEP if old is _Passes.MAYBE else FilterOutcome.UNDECIDED


_PLACES = len(_Passes)
_OPERATIONS = (INSERT, UPDATE, DELETE)
_CASES = [_outcome(operation, old, new) for operation in _OPERATIONS for old in _Passes for new in _Passes]
_OUTCOMES = bytes(_CASES).ljust(256, b"\0")
_OF_OPERATION = bytes(_OPERATIONS.index(code) * _PLACES**2 if code in _OPERATIONS else 0 for code in range(256))
_OF_OLD = bytes(_passes(truths) * _PLACES for truths in range(UNKNOWN + 1)).ljust(256, b"\0")
_OF_NEW = bytes(_passes(truths) for truths in range(UNKNOWN + 1)).ljust(256, b"\0")


def filter_outcomes(operations: bytes | bytearray, old: bytes, new: bytes) -> bytes:
    """A FilterOutcome for each row, of its operation and of the truth (``rules.truth``) of all filters for its old and its new
    row. An INSERT has no old row and a DELETE no new one: their truth does not count."""
    places = operations.translate(_OF_OPERATION), old.translate(_OF_OLD), new.translate(_OF_NEW)
    total = sum(int.from_bytes(column, "little") for column in places)  # at most 26 in each byte
    return total.to_bytes(len(operations), "little").translate(_OUTCOMES)


class ChangedOperations:
    """Changes that go on as another operation, because their row enters or leaves what the filters let through.

    It changes its own copy of ``changes``. ``failures`` says of the rows that could not be changed why not.
    """

    def __init__(self, changes: TableChanges) -> None:
        width = range(len(changes.table.columns))
        self.failures: dict[int, str] = {}
        self._table = changes.table
        self._new = [list(column) for column in changes.new]
        self._old: list[list[Value]] = [[None] * len(changes) for _ in width]
        if changes.old is not None:
            self._old = [list(column) for column in changes.old]
        self._kinds = bytearray(len(changes)) if changes.old_kinds is None else bytearray(changes.old_kinds)
        self._operations = bytearray(changes.operations)
        self.changes = TableChanges(changes.table, self._operations, changes.change_indexes, self._new, self._old, self._kinds)

    def apply(self, row: int, outcome: FilterOutcome) -> None:
        match outcome:
            case FilterOutcome.AS_INSERT:
                self._enter(row)
            case FilterOutcome.AS_DELETE:
                self._leave(row)
            case FilterOutcome.UNDECIDED:
                self.failures[row] = f"a value that the filter asks for was not sent; {_FULL_IDENTITY}"
            case FilterOutcome.KEEP | FilterOutcome.DROP:
                pass
            case _:
                assert_never(outcome)

    def _enter(self, row: int) -> None:
        for index, column in enumerate(self._table.columns):
            kind = self._kinds[row]
            if self._new[index][row] is UNCHANGED and (kind == OLD_ROW or (kind == OLD_KEY and column.identity_key)):
                self._new[index][row] = self._old[index][row]
            if self._new[index][row] is UNCHANGED:
                self.failures[row] = (
                    f"the row enters the filter, and its value of column '{column.name}' was not sent; {_FULL_IDENTITY}"
                )
            self._old[index][row] = None
        self._kinds[row] = NO_OLD_ROW
        self._operations[row] = INSERT

    def _leave(self, row: int) -> None:
        """Without an old row the key is the new row's: an update that changes the key sends the old one."""
        if self._kinds[row] == NO_OLD_ROW:
            keys = [index for index, column in enumerate(self._table.columns) if column.identity_key]
            for index in keys:
                self._old[index][row] = self._new[index][row]
            if not keys or any(self._old[index][row] is UNCHANGED for index in keys):
                self.failures[row] = (
                    "the row leaves the filter, and its key was not sent; give the source table a replica identity"
                )
            self._kinds[row] = OLD_KEY
        for column in self._new:
            column[row] = None
        self._operations[row] = DELETE
