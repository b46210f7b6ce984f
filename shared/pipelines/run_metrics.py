"""The state bucket's facts about a pipeline's runs, as samples of metrics."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.pipelines.run_facts import RunFacts, read_run_facts
from pgsluice.shared.pipelines.run_outcome import apply_s, with_outcome
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, RunState


async def read_run_samples(bucket: StateBucket) -> list[Sample]:
    """Returns None of a group that is no SQL pipeline's. Raises as ``read_run_facts``."""
    facts = await read_run_facts(bucket)
    if facts is None:
        return []
    reports = {} if facts.record is None else await read_reports(bucket)
    return run_samples(facts, reports.values(), datetime.now(UTC))


def run_samples(facts: RunFacts, reports: Collection[WorkerReport], now: datetime) -> list[Sample]:
    """Pure."""
    late_s = _late_s(facts, now)
    late = [] if late_s is None else [metrics.RUN_LATE_SECONDS.at(late_s, facts.pipeline)]
    if facts.record is None or facts.record.newest is None:
        return late
    return [*late, *_of_record(facts.record, facts.record.newest, reports)]


def _late_s(facts: RunFacts, now: datetime) -> float | None:
    if not facts.has_ticks:
        return None
    if facts.overtaken:
        return (now - datetime.fromisoformat(facts.overtaken[0])).total_seconds()
    return max(0.0, facts.tick_age_s or 0.0)


def _of_record(record: PipelineRecord, newest: RunRecord, reports: Collection[WorkerReport]) -> list[Sample]:
    name, rows = record.pipeline, record.rows
    samples = [
        *metrics.RUN_STATE.one_of(newest.state, RunState, name),
        metrics.RUN_ROWS.at(rows.read, name, "read"),
        metrics.RUN_ROWS.at(rows.dead, name, "dead"),
        metrics.RUN_ROWS.at(rows.deleted, name, "deleted"),
    ]
    if newest.horizon_s is not None:
        samples.append(metrics.RUN_HORIZON_SECONDS.at(newest.horizon_s, name))
    finished = next((run for run in reversed(record.runs) if run.state is RunState.FINISHED), None)
    if finished is None:
        return samples
    applied_s = apply_s(with_outcome(finished, reports) if finished is newest else finished)
    stages = {"plan": finished.plan_s, "read": finished.read_s, "apply": applied_s}
    samples += [metrics.RUN_SECONDS.at(seconds, name, stage) for stage, seconds in stages.items() if seconds is not None]
    samples.append(metrics.RUN_LAST_SUCCESS.at(datetime.fromisoformat(finished.finished_at).timestamp(), name))
    return samples
