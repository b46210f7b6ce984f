"""The outcome of a finished run's rows at the targets of the group's workers, as far as the workers' reports contain it.

A worker reports when it applied its last message, and replaces that with the next one. So the outcome of a run is known
until a later run publishes: a list of runs reads it, and the next run notes it before it begins. It stays unknown if
the run was not applied by then, or if a worker died before its report.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.pipelines.run_records import PIPELINE_KEY, PipelineRecord, RunRecord, RunState, load_pipeline


def with_outcome(run: RunRecord, reports: Collection[WorkerReport]) -> RunRecord:
    """Returns the pipeline's newest run; the same object where nothing more is known of it. Times are those of the
    workers' clocks."""
    if run.state is not RunState.FINISHED or run.applied_at or not reports:
        return run
    if any(report.snapshot_sequence != run.last_sequence or not report.copied_at for report in reports):
        return run
    told = [report.unchanged for report in reports]
    unchanged = [each.rows for each in told if each is not None and each.sequence == run.last_sequence]
    if not run.rows_read and not run.reconciles:  # it published nothing, so its last message is an earlier run's
        unchanged = [0] * len(told)
    applied_at = max([run.finished_at, *(report.copied_at for report in reports)], key=datetime.fromisoformat)
    return replace(run, applied_at=applied_at, unchanged=min(unchanged) if len(unchanged) == len(told) else None)


def apply_s(run: RunRecord) -> float | None:
    """Returns the seconds from the end of its reading until it was applied; None if unknown."""
    if not run.applied_at:
        return None
    return (datetime.fromisoformat(run.applied_at) - datetime.fromisoformat(run.finished_at)).total_seconds()


async def note_outcome(bucket: StateBucket) -> None:
    """Notes the outcome of the newest run. Call it before a run publishes anything, in a process that may write the
    record."""
    record, reports = await load_pipeline(bucket), (await read_reports(bucket)).values()
    if record is None or (newest := record.newest) is None or with_outcome(newest, reports) is newest:
        return

    def changed(known: PipelineRecord) -> PipelineRecord:
        assert known.newest is not None
        return known.with_run(with_outcome(known.newest, reports))

    await bucket.change(PIPELINE_KEY, record, changed)
