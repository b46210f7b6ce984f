"""Figures of one attempt at a batch, counted by its tasks; they become metrics when the batch is applied.

A task counts data that it handles anyway, and only when metrics are exported. Its figures come with its last answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar, assert_never

from pgsluice.shared.broker.worker_records import BatchRecord
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    TableChanges,
    Transaction,
    Truncation,
)

if TYPE_CHECKING:
    from pgsluice.worker.batches.receipts import TaskAnswer
    from pgsluice.worker.sinks.sink import Lane

T = TypeVar("T")

MOST_COMMITS = 100
"""Number of commit times kept for a batch, and so for each of its tasks; they are spread evenly over all of them."""

_ROW_OPERATIONS = ((INSERT, "insert"), (UPDATE, "update"), (DELETE, "delete"))


class TaskFigures(NamedTuple):
    """``applied`` counts what went to the sink, by its table and operation; ``filtered`` what rules and routes left out, by the
    source's table. ``committed_at`` are commit times at the source, in microseconds since 2000. Picklable."""

    bytes: int
    applied: dict[tuple[str, str], int]
    filtered: dict[str, int]
    committed_at: list[int]


class FigureCount:
    """Counts in a task."""

    def __init__(self) -> None:
        self._bytes = 0
        self._applied: Counter[tuple[str, str]] = Counter()
        self._filtered: Counter[str] = Counter()
        self._committed_at: list[int] = []
        self._stride = 1

    def note_message(self, size: int, transactions: Sequence[Transaction]) -> None:
        self._bytes += size
        self._committed_at += [each.committed_at for each in transactions[:: self._stride] if each.commits]
        if len(self._committed_at) > 2 * MOST_COMMITS:
            del self._committed_at[::2]
            self._stride *= 2

    def note_changes(self, before: MessageChanges, after: MessageChanges) -> None:
        """``after`` is what rules and routes made of ``before``."""
        for part in after.parts:
            match part:
                case TableChanges(table=table, operations=operations):
                    for operation, name in _ROW_OPERATIONS:
                        if count := operations.count(operation):
                            self._applied[table.qualified_name, name] += count
                case Truncation(tables=tables):
                    for table in tables:
                        self._applied[table.qualified_name, "truncate"] += 1
                case DefinitionChange():
                    pass
                case unreachable:
                    assert_never(unreachable)
        if len(before.parts) != len(after.parts) or any(a is not b for a, b in zip(before.parts, after.parts, strict=True)):
            self._note_filtered(before, after)

    def _note_filtered(self, before: MessageChanges, after: MessageChanges) -> None:
        kept: set[int] = set()
        for part in after.parts:
            match part:
                case TableChanges(change_indexes=indexes):
                    kept.update(indexes)
                case Truncation() | DefinitionChange():
                    pass
                case unreachable:
                    assert_never(unreachable)
        for part in before.parts:
            match part:
                case TableChanges(table=table, change_indexes=indexes):
                    if left_out := len(indexes) - len(kept.intersection(indexes)):
                        self._filtered[table.qualified_name] += left_out
                case Truncation() | DefinitionChange():
                    pass
                case unreachable:
                    assert_never(unreachable)

    def note_copied(self, size: int, before: CopiedRows, after: Sequence[CopiedRows]) -> None:
        """Notes the copied rows of one message."""
        self._bytes += size
        for rows in after:
            if rows.rows:
                self._applied[rows.table.qualified_name, "copy"] += rows.rows
        if any(rows.numbers is None for rows in after):
            return
        kept = {number for rows in after for number in rows.numbers or ()}
        if left_out := before.rows - len(kept):
            self._filtered[before.table.qualified_name] += left_out

    @property
    def figures(self) -> TaskFigures:
        """Returns all that was counted."""
        return TaskFigures(self._bytes, dict(self._applied), dict(self._filtered), thinned(self._committed_at))


def thinned(times: list[int]) -> list[int]:
    """Returns at most MOST_COMMITS of them, evenly spread."""
    return times[:: -(-len(times) // MOST_COMMITS)] if len(times) > MOST_COMMITS else times


class BatchFigures:
    """Figures of all tasks of one attempt, with the seconds that its stages took. ``changes`` counts source changes."""

    def __init__(self, plan_s: float = 0.0) -> None:
        self.plan_s = plan_s
        self.write_s = 0.0
        self.commit_s = 0.0
        self.changes = 0
        self.bytes = 0
        self.applied: Counter[tuple[str, str]] = Counter()
        self.filtered: Counter[str] = Counter()
        self._committed_at: list[int] = []

    @property
    def committed_at(self) -> list[int]:
        return thinned(self._committed_at)

    def taken_from(self, answers: Iterable[TaskAnswer]) -> Iterator[TaskAnswer]:
        """Yields ``answers``, as they pass."""
        for answer in answers:
            if answer.figures is not None:
                self.add(answer.figures)
            yield answer

    def add(self, figures: TaskFigures) -> None:
        self.bytes += figures.bytes
        self.applied.update(figures.applied)
        self.filtered.update(figures.filtered)
        self._committed_at += figures.committed_at

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Times the sink's commit. Its waits for tasks that still write are their time."""
        began_at, write_s = time.monotonic(), self.write_s
        yield
        self.commit_s = time.monotonic() - began_at - (self.write_s - write_s)


class BatchWaits:
    """The delays of one batch: attempts that failed, from the begin of the first one at ``began_at`` of the monotonic
    clock."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.attempts = 1
        self.waited_for: Cause | None = None
        self.reason = ""

    def note(self, error: TransientError) -> None:
        """Notes that an attempt failed for a passing cause."""
        self.waited_for, self.reason = error.cause, str(error)

    def record(self, lane: Lane, figures: BatchFigures, began_at: float) -> BatchRecord:
        """Returns the record of the batch whose last attempt began at ``began_at``, and is applied just now."""
        return BatchRecord(
            at=datetime.now(UTC).isoformat(),
            lane=lane.value,
            changes=figures.changes,
            seconds=round(time.monotonic() - began_at, 4),
            plan_s=round(figures.plan_s, 4),
            write_s=round(figures.write_s, 4),
            commit_s=round(figures.commit_s, 4),
            attempts=self.attempts,
            waited_s=round(max(0.0, began_at - self.began_at), 4),
            waited_for=self.waited_for,
            reason=self.reason,
        )


def timed(answers: Iterable[T], figures: BatchFigures) -> Iterator[T]:
    """Yields ``answers``, which tasks write while they are consumed: that time is the writing time."""
    iterator = iter(answers)
    while True:
        began_at = time.monotonic()
        try:
            answer = next(iterator)
        except StopIteration:
            return
        finally:
            figures.write_s += time.monotonic() - began_at
        yield answer
