"""What workers' reports tell of a run, and of what they can tell nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.broker.worker_records import UnchangedRows, WorkerReport
from pgsluice.shared.pipelines.run_outcome import apply_s, with_outcome
from pgsluice.shared.pipelines.run_records import MOST_RUNS, PipelineRecord, RunRecord, RunRows, RunState

FINISHED = RunRecord(
    3,
    RunState.FINISHED,
    True,
    "2026-01-31T12:00:00+00:00",
    finished_at="2026-01-31T12:00:10+00:00",
    last_sequence=9,
    rows_read=20,
)
APPLIED = WorkerReport(0, 9, copied_at="2026-01-31T12:00:12+00:00", unchanged=UnchangedRows(9, 6))
LATER = WorkerReport(0, 9, copied_at="2026-01-31T12:00:14.500000+00:00", unchanged=UnchangedRows(9, 5))


def test_a_run_is_applied_when_the_last_worker_has_applied_it() -> None:
    run = with_outcome(FINISHED, [LATER, APPLIED])
    assert (apply_s(run), run.unchanged) == (4.5, 5)


@pytest.mark.parametrize(
    "reports",
    [
        [],
        [APPLIED, replace(LATER, snapshot_sequence=8)],
        [APPLIED, replace(LATER, snapshot_sequence=12)],
        [APPLIED, replace(LATER, copied_at="")],
    ],
    ids=["no worker", "one is not there yet", "one has gone on", "one died before it told"],
)
def test_what_nobody_can_tell_is_not_told(reports: list[WorkerReport]) -> None:
    assert with_outcome(FINISHED, reports) is FINISHED
    assert apply_s(FINISHED) is None


@pytest.mark.parametrize("told", [None, UnchangedRows(5, 1)], ids=["not compared", "of an earlier run"])
def test_unchanged_rows_are_known_where_every_sink_compared_them(told: UnchangedRows | None) -> None:
    run = with_outcome(FINISHED, [APPLIED, replace(LATER, unchanged=told)])
    assert (apply_s(run), run.unchanged) == (4.5, None)


def test_a_run_that_published_nothing_was_applied_at_once() -> None:
    empty = replace(FINISHED, finished_at="2026-01-31T13:00:00+00:00", rows_read=0)
    run = with_outcome(empty, [APPLIED])
    assert (apply_s(run), run.unchanged) == (0.0, 0)


def test_what_was_noted_stays_as_it_is_and_so_does_a_run_that_goes_on() -> None:
    noted = with_outcome(FINISHED, [APPLIED])
    assert with_outcome(noted, [LATER]) is noted
    reading = replace(FINISHED, state=RunState.READING)
    assert with_outcome(reading, [APPLIED]) is reading


def test_rows_of_runs_that_are_forgotten_stay_counted() -> None:
    record = PipelineRecord("ratings", "f", "s")
    for number in range(1, MOST_RUNS + 4):
        record = record.with_run(replace(FINISHED, number=number, rows_read=10, dead=1))
        record = record.with_run(replace(FINISHED, number=number, rows_read=11, dead=1))
    record = record.with_run(replace(FINISHED, number=99, rows=5, rows_read=0, reconciles=True))
    assert len(record.runs) == MOST_RUNS
    assert record.rows == RunRows(11 * (MOST_RUNS + 3), MOST_RUNS + 3, 5)
