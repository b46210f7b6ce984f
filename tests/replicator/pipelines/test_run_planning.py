"""Changes to a plan before it is stored."""

from __future__ import annotations

import pytest

from pgsluice.replicator.pipelines.run_planning import Planned
from pgsluice.shared.pipelines.run_records import PipelineRecord, RangeRecord, RunRecord, RunState

LETTERS = (RangeRecord(8, (), ("3",), is_row=True, is_replayed=True), RangeRecord(9, (), ("5",), is_row=True, is_replayed=True))


@pytest.mark.parametrize(
    ("is_full", "attempt", "rows", "ranges"),
    [(False, 1, 12, [1, 8, 9]), (False, 2, 10, [1]), (True, 1, 10, [1])],
    ids=["a new run", "one that is taken up", "a full run"],
)
def test_dead_letters_are_read_again_by_a_new_run_that_would_not_read_them_anyhow(
    is_full: bool, attempt: int, rows: int, ranges: list[int]
) -> None:
    run = RunRecord(1, RunState.READING, is_full, "then", attempt=attempt, rows=10, ranges=(RangeRecord(1, (), ("9",)),))
    planned = Planned(PipelineRecord("ratings", "f", "s"), run).with_rows(LETTERS)
    assert (planned.run.rows, [each.number for each in planned.run.ranges]) == (rows, ranges)
