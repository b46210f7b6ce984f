"""What is shown of a pipeline's runs, and what is left out where it is not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pgsluice.shared.broker.worker_records import WorkerReport
from pgsluice.shared.pipelines.run_facts import RunFacts
from pgsluice.shared.pipelines.run_metrics import run_samples
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, RunState
from pgsluice.shared.pipelines.run_requests import AskedBy, RunRequest, RunRequests, RunWish, Ticks

NOW = datetime(2026, 1, 31, 14, 30, tzinfo=UTC)
TICK, NEXT_TICK = "2026-01-31T13:00:00+00:00", "2026-01-31T14:00:00+00:00"
FINISHED = RunRecord(
    1,
    RunState.FINISHED,
    True,
    "2026-01-31T12:00:00+00:00",
    finished_at="2026-01-31T12:00:10+00:00",
    rows_read=100,
    dead=2,
    plan_s=1.5,
    read_s=8.0,
    last_sequence=7,
    applied_at="2026-01-31T12:00:13+00:00",
)
FAILED = replace(FINISHED, number=2, state=RunState.FAILED, rows_read=5, dead=0, plan_s=9.0, applied_at="", horizon_s=60.0)

Shown = dict[tuple[str, ...], float]


def shown(facts: RunFacts, *reports: WorkerReport) -> Shown:
    """Values by name and labels but the first, which is the pipeline."""
    samples = run_samples(facts, reports, NOW)
    assert {sample.labels[0] for sample in samples} == {facts.pipeline}
    return {(sample.metric.name.removeprefix("pgsluice_run_"), *sample.labels[1:]): sample.value for sample in samples}


def facts(*runs: RunRecord) -> RunFacts:
    return RunFacts(PipelineRecord("ratings", "f", "s", runs=runs), RunRequests(), None)


def test_the_newest_run_tells_its_state_and_the_one_that_was_finished_its_times() -> None:
    found = shown(facts(FINISHED, FAILED))
    states = {labels[1]: value for labels, value in found.items() if labels[0] == "state"}
    assert states == {str(state): float(state is RunState.FAILED) for state in RunState}
    assert {labels: value for labels, value in found.items() if labels[0] != "state"} == {
        ("rows_total", "read"): 105,
        ("rows_total", "dead"): 2,
        ("rows_total", "deleted"): 0,
        ("horizon_seconds",): 60.0,
        ("seconds", "plan"): 1.5,
        ("seconds", "read"): 8.0,
        ("seconds", "apply"): 3.0,
        ("last_success_timestamp_seconds",): datetime(2026, 1, 31, 12, 0, 10, tzinfo=UTC).timestamp(),
    }


def test_of_the_newest_run_workers_tell_how_long_they_took() -> None:
    newest = replace(FINISHED, applied_at="")
    assert ("seconds", "apply") not in shown(facts(newest), WorkerReport(0, 6))
    assert shown(facts(newest), WorkerReport(0, 7, copied_at="2026-01-31T12:00:11+00:00"))["seconds", "apply"] == 1.0


@pytest.mark.parametrize(
    ("wish", "age_s", "is_open", "late_s"),
    [
        (RunWish.RUN, None, False, None),
        (RunWish.PAUSE, 300.0, True, None),
        (RunWish.RUN, -300.0, False, 0.0),
        (RunWish.RUN, 300.0, False, 300.0),
        (RunWish.RUN, -300.0, True, 5400.0),
    ],
    ids=["no schedule", "paused", "the next tick comes", "nobody executes it", "a run took longer than from tick to tick"],
)
def test_it_is_late_when_a_tick_waits(wish: RunWish, age_s: float | None, is_open: bool, late_s: float | None) -> None:
    asked = (RunRequest(TICK, full=False, by=AskedBy.SCHEDULE, requested_at=TICK),) if is_open else ()
    requests = RunRequests(wish, 0, asked, Ticks("every 3600 s", TICK, NEXT_TICK))
    samples = run_samples(RunFacts(None, requests, age_s), (), NOW)
    assert [sample.value for sample in samples] == ([] if late_s is None else [late_s])
