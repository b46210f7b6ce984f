"""Runs that an executor may take up, and runs that may still have tasks at work."""

from __future__ import annotations

import pytest

from pgsluice.shared.pipelines.run_records import PipelineRecord, RangeRecord, RunRecord, RunState

RANGES = (RangeRecord(1, (), ("9",)),)


def record(state: RunState, ranges: tuple[RangeRecord, ...] = RANGES) -> PipelineRecord:
    run = RunRecord(7, state, is_full=False, started_at="then", ranges=ranges)
    return PipelineRecord("ratings", "f", "s", runs=(run,))


@pytest.mark.parametrize(
    ("state", "is_unfinished"),
    [
        (RunState.READING, True),
        (RunState.INTERRUPTED, True),
        (RunState.PAUSED, True),
        (RunState.FAILED, True),
        (RunState.FINISHED, False),
        (RunState.CANCELLED, False),
        (RunState.ABANDONED, False),
    ],
)
def test_a_run_that_ended_early_is_taken_up_and_one_that_is_over_is_not(state: RunState, is_unfinished: bool) -> None:
    assert (record(state).unfinished is not None) == is_unfinished


def test_of_a_cancelled_run_a_task_may_be_at_work_until_its_ranges_are_ended() -> None:
    cancelled = record(RunState.CANCELLED)
    assert (cancelled.unfinished, cancelled.with_open_ranges) == (None, cancelled.newest)
    assert record(RunState.CANCELLED, ranges=()).with_open_ranges is None
    assert record(RunState.FAILED, ranges=()).with_open_ranges is not None
