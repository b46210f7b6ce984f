"""What tasks count: by what goes to the sink, and by what rules left out of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges, TableChanges, Transaction, Truncation
from pgsluice.testing.changes_builder import table
from pgsluice.worker.metrics.batch_figures import MOST_COMMITS, BatchFigures, FigureCount, TaskFigures, timed

ORDERS = table("orders", "id bigint")
ARCHIVE = replace(ORDERS, name="archive")


def changes_of(operations: bytes, indexes: range | list[int], to: object = ORDERS) -> TableChanges:
    return TableChanges(to, bytearray(operations), list(indexes), [[]])  # type: ignore[arg-type]


def message(*parts: TableChanges | Truncation) -> MessageChanges:
    return MessageChanges(1, 1, [], list(parts), 10)


def test_changes_are_counted_by_the_table_and_operation_that_the_sink_gets() -> None:
    count = FigureCount()
    before = message(changes_of(b"IIUD", range(4)), Truncation((ORDERS, ARCHIVE), 4, cascade=False, restart_identity=False))
    count.note_changes(before, before)
    assert count.figures.applied == {
        ("public.orders", "insert"): 2,
        ("public.orders", "update"): 1,
        ("public.orders", "delete"): 1,
        ("public.orders", "truncate"): 1,
        ("public.archive", "truncate"): 1,
    }
    assert count.figures.filtered == {}


def test_what_rules_leave_out_is_counted_by_the_table_of_the_source_and_a_change_that_goes_to_two_is_not() -> None:
    count = FigureCount()
    before = message(changes_of(b"IIIIUU", range(6)))
    after = message(changes_of(b"III", [0, 1, 4]), changes_of(b"II", [1, 2], ARCHIVE))
    count.note_changes(before, after)
    assert count.figures.filtered == {"public.orders": 2}
    assert count.figures.applied == {("public.orders", "insert"): 3, ("public.archive", "insert"): 2}
    count.note_changes(before, message())
    assert count.figures.filtered == {"public.orders": 8}


def test_copied_rows_are_counted_as_what_they_are() -> None:
    count = FigureCount()
    rows = CopiedRows(1, ORDERS, "s", 10, memoryview(b""), restarts=False)
    count.note_copied(100, rows, [rows])
    left = replace(rows, rows=3, numbers=(0, 4, 5))
    count.note_copied(50, rows, [left, replace(left, table=ARCHIVE, rows=2, numbers=(5, 6))])
    count.note_copied(0, rows, [])
    assert count.figures.applied == {("public.orders", "copy"): 13, ("public.archive", "copy"): 2}
    assert (count.figures.filtered, count.figures.bytes) == ({"public.orders": 6 + 10}, 150)


def commits_at(*times: int) -> list[Transaction]:
    return [Transaction(1, 1, time, 0, 1, 1, begins=True, commits=True) for time in times]


def test_of_many_commits_some_are_kept_and_they_are_spread_over_all() -> None:
    count = FigureCount()
    count.note_message(1, [*commits_at(1), Transaction(1, 1, 2, 0, 1, 1, begins=True, commits=False)])
    assert count.figures.committed_at == [1]
    for start in range(0, 100_000, 500):
        count.note_message(1, commits_at(*range(start, start + 500)))
    kept = count.figures.committed_at
    assert MOST_COMMITS // 2 <= len(kept) <= MOST_COMMITS
    assert kept == sorted(kept)
    quarters = [sum(low <= each < low + 25_000 for each in kept) for low in range(0, 100_000, 25_000)]
    assert min(quarters) > 10


def test_a_batch_is_what_its_tasks_are_together() -> None:
    batch = BatchFigures()
    for _ in range(3):
        batch.add(TaskFigures(10, {("t", "insert"): 2}, {"t": 1}, [7] * MOST_COMMITS))
    assert (batch.bytes, dict(batch.applied), dict(batch.filtered)) == (30, {("t", "insert"): 6}, {"t": 3})
    assert len(batch.committed_at) == MOST_COMMITS


def test_what_a_commit_waits_for_tasks_is_time_of_writing() -> None:
    batch = BatchFigures()
    with batch.committing():
        assert list(timed(iter([1, 2]), batch)) == [1, 2]
        batch.write_s += 1000.0
    assert batch.commit_s == pytest.approx(-1000.0, abs=10)
