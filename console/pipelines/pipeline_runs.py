"""What ``pgsluice run`` and ``pgsluice runs`` do and say. No row value is shown, so no checkpoint either."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from pgsluice.console.columns import format_columns
from pgsluice.console.pipelines.pipelines_file import find_pipeline, read_pipelines
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.pipeline_run import plan, run
from pgsluice.replicator.pipelines.run_records import RunRecord, RunState, load_pipeline
from pgsluice.replicator.retention import copied_by_all
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.settings import PipelineSettings, RunsSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames

_HEADINGS = ("PIPELINE", "RUN", "KIND", "STATE", "STARTED", "FINISHED", "ROWS", "REASON")


def run_pipeline(settings: PipelineSettings, name: str, *, full: bool, wait: bool) -> None:
    """Raises PgsluiceError with what hindered the run."""
    pipeline = find_pipeline(settings.file, name, settings.schema)
    ended = run(settings, pipeline, full=full, wait=wait)
    applied = ", and every worker has applied them" if wait else ""
    _write(f"run {ended.number} of {pipeline.name}: {ended.rows} rows are in the stream of group {pipeline.group}{applied}")


def show_plan(settings: PipelineSettings, name: str, *, full: bool) -> None:
    pipeline = find_pipeline(settings.file, name, settings.schema)
    planned = plan(settings, pipeline, full=full)
    kind = "full" if planned.is_full else "incremental"
    begun = "takes up what is left of a run of" if planned.is_resumed else "would read"
    _write(f"{pipeline.name}: {kind}, {begun} {planned.rows} rows in {planned.ranges} batches")
    _write(f"into {pipeline.schema}.{pipeline.table} ({pipeline.write}), by the workers of group {pipeline.group}")
    sys.stdout.writelines(line + "\n" for line in format_columns(("COLUMN", "TYPE"), planned.columns))


@dataclass(frozen=True, slots=True)
class ListedRun:
    """``state`` is the record's, or ``applied`` when the rows of a finished run are at every worker's target."""

    pipeline: str
    run: int
    kind: str
    state: str
    started_at: str
    finished_at: str
    rows: int
    attempts: int
    reason: str


def list_runs(settings: RunsSettings, name: str | None, *, as_json: bool) -> None:
    """The newest first. Raises UsageError when the file does not hold the pipeline."""
    pipelines = read_pipelines(settings.file)
    if name is not None and name not in pipelines:
        raise UsageError(f"there is no pipeline '{name}' in {settings.file}", f"there are {', '.join(pipelines) or 'none'}")
    listed = asyncio.run(_listed(settings, [each for each in pipelines.values() if name in (None, each.name)]))
    if as_json:
        sys.stdout.writelines(orjson.dumps(each).decode() + "\n" for each in listed)
        return
    sys.stdout.writelines(line + "\n" for line in format_columns(_HEADINGS, [_columns(each) for each in listed], numbers=(1, 6)))


async def _listed(settings: RunsSettings, pipelines: Sequence[Pipeline]) -> list[ListedRun]:
    found: list[ListedRun] = []
    async with connected(settings.nats, "pgsluice runs") as client:
        for pipeline in pipelines:
            bucket = StateBucket(client, GroupNames(pipeline.group))
            record = await load_pipeline(bucket) if await bucket.exists() else None
            if record is not None:
                applied = await copied_by_all(bucket)
                found += [_listed_run(pipeline.name, run, applied) for run in reversed(record.runs)]
    return found


def _listed_run(pipeline: str, run: RunRecord, applied: int) -> ListedRun:
    is_applied = run.state is RunState.FINISHED and applied >= run.last_sequence
    return ListedRun(
        pipeline=pipeline,
        run=run.number,
        kind="full" if run.is_full else "incremental",
        state="applied" if is_applied else str(run.state),
        started_at=run.started_at,
        finished_at=run.finished_at,
        rows=run.rows,
        attempts=run.attempt,
        reason=run.reason,
    )


def _columns(run: ListedRun) -> tuple[str, ...]:
    return (run.pipeline, str(run.run), run.kind, run.state, run.started_at, run.finished_at, str(run.rows), run.reason)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
