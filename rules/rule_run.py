"""One run of a table's rules over changes of that table.

Filters decide together whether a change continues, is dropped, or continues as another operation:

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

A delete of a row that does not exist does no harm, so where the old row is unknown a DELETE is sent to be safe. An
UPDATE whose new row passes is right to apply whether the row existed or not, if all of its values were sent. An update
that leaves both rows unknown did not touch the value that the filter asks for: a row that existed before stays, one
that did not exist does not exist now. (A filter that asks for several values may be wrong there, about values that did
change: it needs REPLICA IDENTITY FULL.)

A transform changes both images of a row. A filter is asked of both images, and its answers are kept until all rules are
done, because the outcome depends on all filters together; a row that is dropped whatever comes goes at once. A row that
a rule cannot process is rejected: it goes no further.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import assert_never

from pgsluice.rules.bounds import RuleBudget
from pgsluice.rules.known_rows import KnownRows, NewRows, OldRows, all_present
from pgsluice.rules.orderings import BLANK_PADDED_OID
from pgsluice.rules.rule import Filter, RejectedRow, RuleOutcome, Test, Transform, Transformed, ValueTransformation
from pgsluice.rules.truth import FALSE, TRUE, UNKNOWN, conjunction, where
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY, OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, TableChanges
from pgsluice.shared.rows.plain_rows import selected, with_columns
from pgsluice.shared.wire.table import UNCHANGED, Table, Value

_FULL_IDENTITY = "a source table with REPLICA IDENTITY FULL would send it"


_OPERATIONS = (INSERT, UPDATE, DELETE)
_PIECE_BYTES = 64 * 1024
_PIECE_VALUES = 1024
_TRUE = bytes((TRUE,))
_ONLY_IF_TRUE = bytes(truths if truths == TRUE else FALSE for truths in range(256))


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
_CASES = [_outcome(operation, old, new) for operation in _OPERATIONS for old in _Passes for new in _Passes]
_OUTCOMES = bytes(_CASES).ljust(256, b"\0")
_OF_OPERATION = bytes(_OPERATIONS.index(code) * _PLACES**2 if code in _OPERATIONS else 0 for code in range(256))
_OF_OLD = bytes(_passes(truths) * _PLACES for truths in range(UNKNOWN + 1)).ljust(256, b"\0")
_OF_NEW = bytes(_passes(truths) for truths in range(UNKNOWN + 1)).ljust(256, b"\0")


def filter_outcomes(operations: bytes | bytearray, old: bytes, new: bytes) -> bytes:
    """Returns a FilterOutcome for each row, of its operation and of the truth (``rules.truth``) of all filters for its
    old and its new row. An INSERT has no old row and a DELETE no new one: their truth does not count."""
    places = operations.translate(_OF_OPERATION), old.translate(_OF_OLD), new.translate(_OF_NEW)
    total = sum(int.from_bytes(column, "little") for column in places)  # at most 26 in each byte
    return total.to_bytes(len(operations), "little").translate(_OUTCOMES)


class ChangedOperations:
    """Changes that continue as another operation, because their row begins or ceases to pass the filters.

    It changes its own copy of ``changes``. ``failures`` holds the reasons for rows that could not be changed.
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
        """Uses the new row's key if there is no old row: an update that changes the key sends the old one."""
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


_IS_GOING_ON = bytes(outcome != FilterOutcome.DROP for outcome in range(256))


class RuleRun:
    """``changes`` are not changed; what is left of them comes from ``finish``. Without a ``budget`` rules take what they take;
    with one they raise BudgetSpentError as soon as it is spent."""

    def __init__(self, changes: TableChanges, budget: RuleBudget | None = None) -> None:
        self._changes = changes
        self._budget = budget
        self._rejected: list[RejectedRow] = []
        self._filters: list[Filter] = []
        self._old_truths = self._new_truths = b""

    def __len__(self) -> int:
        return len(self._changes)

    def transform(self, rule: Transform, columns: Sequence[int]) -> None:
        """Applies ``rule`` to the columns at these indexes."""
        changes = self._changes
        rows: Sequence[int] | None = None
        if changes.operations.translate(None, bytes(rule.operations)):
            rows = [row for row, operation in enumerate(changes.operations) if operation in rule.operations]
            if not rows:
                return
        failures: dict[int, str] = {}
        images = []
        for image in (changes.new,) if changes.old is None else (changes.new, changes.old):
            replaced = {}
            for index in columns:
                column = changes.table.columns[index]
                is_padded = column.type_oid == BLANK_PADDED_OID
                transformation = _Applied(rule.transformation, self._budget)
                replaced[index], failed = _transformed(image[index], transformation, rows, is_padded)
                failures.update((row, f"column '{column.name}': {reason}") for row, reason in failed.items())
            images.append(with_columns(image, replaced))
        self._changes = replace(changes, new=images[0], old=images[1] if changes.old is not None else None)
        self._reject(failures, rule.place)

    def clear(self, columns: Sequence[int], table: Table) -> None:
        """Puts NULL in the place of everything that rows hold in these columns. ``table`` is what they are of then."""
        nothing: list[Value] = [None] * len(self._changes)
        cleared, old = dict.fromkeys(columns, nothing), self._changes.old
        new = with_columns(self._changes.new, cleared)
        self._changes = replace(self._changes, table=table, new=new, old=None if old is None else with_columns(old, cleared))

    def filter(self, rule: Filter, test: Test) -> None:
        operations = self._changes.operations
        asked = bytes(operations.translate(_asked(rule.operations)))
        if 255 not in asked:
            return
        if not self._filters:
            self._old_truths = self._new_truths = _TRUE * len(operations)
        self._filters.append(rule)
        failures: dict[int, str] = {}
        if operations.count(DELETE) < len(operations):
            self._new_truths = conjunction(
                self._new_truths, _answers(NewRows(self._changes, self._budget), test, asked, failures)
            )
        if operations.count(INSERT) < len(operations):
            answers = _answers(OldRows(self._changes, self._budget), test, asked, failures)
            if rule.drops_unknown_deletes:
                answers = where(bytes(operations.translate(_asked({DELETE}))), answers.translate(_ONLY_IF_TRUE), answers)
            self._old_truths = conjunction(self._old_truths, answers)
        self._reject(failures, rule.place, self._outcomes().translate(_IS_GOING_ON))

    def finish(self) -> RuleOutcome:
        if self._filters and len(self._changes):
            outcomes = self._outcomes()
            if outcomes.count(FilterOutcome.KEEP) < len(outcomes):
                self._change_operations(outcomes)
        return RuleOutcome(self._changes if len(self._changes) else None, self._rejected)

    def _change_operations(self, outcomes: bytes) -> None:
        changed = ChangedOperations(self._changes)
        for row, outcome in enumerate(outcomes):
            if outcome != FilterOutcome.KEEP:
                changed.apply(row, FilterOutcome(outcome))
        self._changes = changed.changes
        self._reject(changed.failures, " and ".join(rule.place for rule in self._filters))

    def _outcomes(self) -> bytes:
        return filter_outcomes(self._changes.operations, self._old_truths, self._new_truths)

    def _reject(self, failures: Mapping[int, str], place: str, going_on: bytes | None = None) -> None:
        """Rejects the rows that failed, as far as they are ``going_on`` (None: all rows are), and drops failed rows
        that are not."""
        kept = bytearray(b"\1" * len(self._changes) if going_on is None else going_on)
        for row, reason in sorted(failures.items()):
            if kept[row]:
                kept[row] = 0
                self._rejected.append(RejectedRow(self._changes.change_indexes[row], place, reason))
        if 0 in kept:
            self._changes = _compressed(self._changes, kept)
            self._old_truths = bytes(compress(self._old_truths, kept))
            self._new_truths = bytes(compress(self._new_truths, kept))


def _answers(images: KnownRows, test: Test, asked: bytes, failures: dict[int, str]) -> bytes:
    """TRUE for the rows that are not asked. Adds to ``failures``."""
    answers = test(images)
    if 0 in asked:
        answers = where(asked, answers, _TRUE * len(asked))
    failures.update((row, reason) for row, reason in images.failures.items() if asked[row])
    return answers


def _asked(operations: Iterable[int]) -> bytes:
    """Returns a table for ``bytes.translate``: 255 for these operations, 0 for others."""
    table = bytearray(256)
    for operation in operations:
        table[operation] = 255
    return bytes(table)


def _compressed(changes: TableChanges, kept: bytearray) -> TableChanges:
    return TableChanges(
        changes.table,
        bytearray(compress(changes.operations, kept)),
        list(compress(changes.change_indexes, kept)),
        selected(changes.new, kept),
        None if changes.old is None else selected(changes.old, kept),
        None if changes.old_kinds is None else bytearray(compress(changes.old_kinds, kept)),
    )


def _transformed(
    values: Sequence[Value], transformation: _Applied, rows: Sequence[int] | None, is_padded: bool
) -> tuple[Sequence[Value], dict[int, str]]:
    """Returns the column with its texts transformed, in ``rows`` only (None: all); and, by row, which could not be and
    why. ``is_padded``: blanks at the end of a value are not part of it."""
    if rows is None and not is_padded and all_present(values):
        done = transformation.to(values)  # type: ignore[arg-type]
        return list(done.values), done.failures
    places = [row for row in (range(len(values)) if rows is None else rows) if isinstance(values[row], bytes)]
    texts: list[bytes] = [values[row] for row in places]  # type: ignore[misc]
    done = transformation.to([text.rstrip(b" ") for text in texts] if is_padded else texts)
    column = list(values)
    for row, value in zip(places, done.values, strict=True):
        column[row] = value
    return column, {places[index]: reason for index, reason in done.failures.items()}


@dataclass(frozen=True, slots=True)
class _Applied:
    """A transformation within a budget, if there is one."""

    transformation: ValueTransformation
    budget: RuleBudget | None

    def to(self, values: Sequence[bytes]) -> Transformed:
        if self.budget is None:
            return self._to_all(values)
        made: list[bytes] = []
        failures: dict[int, str] = {}
        for piece in _pieces(values):
            self.budget.check()
            done = self._to_all(piece)
            self.budget.grow(sum(map(len, done.values)) - sum(map(len, piece)))
            failures.update((len(made) + index, reason) for index, reason in done.failures.items())
            made += done.values
        return Transformed(made, failures)

    def _to_all(self, values: Sequence[bytes]) -> Transformed:
        try:
            return self.transformation.apply(values)
        except ValueError:
            return self._to_each(values)

    def _to_each(self, values: Sequence[bytes]) -> Transformed:
        results: list[bytes] = []
        failures: dict[int, str] = {}
        for index, value in enumerate(values):
            try:
                single = self.transformation.apply([value])
                results += single.values
                failures.update((index, reason) for reason in single.failures.values())
            except ValueError:
                results.append(b"")
                failures[index] = "the value is not UTF-8"
        return Transformed(results, failures)


def _pieces(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Splits the values into pieces of so many values and bytes, or of one value, so that a budget is asked before a piece
    costs much."""
    for first in range(0, len(values), _PIECE_VALUES):
        some = values[first : first + _PIECE_VALUES]
        if sum(map(len, some)) <= _PIECE_BYTES:
            yield some
            continue
        begin = size = 0
        for place, value in enumerate(some):
            if place > begin and size + len(value) > _PIECE_BYTES:
                yield some[begin:place]
                begin, size = place, 0
            size += len(value)
        yield some[begin:]
