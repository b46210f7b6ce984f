"""The work and output of ``pgsluice run`` and ``pgsluice runs``. No row value is shown, so no checkpoint either."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field, replace

import orjson
from nats.aio.client import Client

from pgsluice.console.columns import format_columns
from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_settings import environment_for
from pgsluice.console.flags import known_options
from pgsluice.console.pipelines.pipeline_catalog import PipelineCatalog, RunnablePipeline
from pgsluice.console.pipelines.places import read_places
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.pipeline_run import plan, run
from pgsluice.replicator.pipelines.reconciliation import Reconciling
from pgsluice.shared import config
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.config.connections import PostgresSettings
from pgsluice.shared.config.yaml_nodes import read_text
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.pipelines.pipeline_settings import RunPipelineSettings, RunsSettings, TargetSettings
from pgsluice.shared.pipelines.run_outcome import apply_s, with_outcome
from pgsluice.shared.pipelines.run_records import RunRecord, RunState, load_pipeline
from pgsluice.shared.pipelines.run_requests import RUN_REQUESTS, RunRequest, RunRequests, RunWish, Ticks, cancel, pause, resume
from pgsluice.shared.process import stop_signals
from pgsluice.shared.wire.names import GroupNames

_HEADINGS = (
    "PIPELINE",
    "RUN",
    "KIND",
    "STATE",
    "STARTED",
    "FINISHED",
    "ROWS",
    "READ",
    "DEAD",
    "APPLIED",
    "UNCHANGED",
    "PLAN",
    "READING",
    "APPLYING",
    "REASON",
)
_NUMBERS = (1, *range(6, 14))


def run_pipeline(
    settings: RunPipelineSettings,
    name: str,
    *,
    full: bool,
    wait: bool,
    request: str = "",
    reconcile: bool = False,
    force: bool = False,
) -> None:
    """Raises PgsluiceError with what hindered the run; TerminalError also when a user ended it."""
    found = _find(settings, name)
    compares = reconcile or bool(found.pipeline.reconcile_every_s)
    reconciling = Reconciling(_target(settings, found.pipeline) if compares else settings.target, reconcile, force)
    stop_signals.interrupt_on_term()
    ended = run(found.settings, found.pipeline, full=full, wait=wait, request=request, reconciling=reconciling)
    if ended.state is RunState.PAUSED:
        raise TerminalError(f"run {ended.number} of {name} was paused", f"'pgsluice run {name}' continues it")
    if ended.state is RunState.CANCELLED:
        raise TerminalError(f"run {ended.number} of {name} was cancelled", "the next run begins at the checkpoint")
    applied = ", and every worker has applied them" if wait else ""
    _write(f"run {ended.number} of {name}: {ended.rows_read} rows are in the stream of group {found.pipeline.group}{applied}")
    if ended.dead:
        _write(f"{ended.dead} of them cannot continue: see 'pgsluice dead list --group {found.pipeline.group}'")


def show_plan(settings: RunPipelineSettings, name: str, *, full: bool) -> None:
    found = _find(settings, name)
    pipeline, planned = found.pipeline, plan(found.settings, found.pipeline, full=full)
    kind = "full" if planned.is_full else "incremental"
    begun = "continues a run of" if planned.is_resumed else "would read"
    _write(f"{pipeline.name}: {kind}, {begun} {planned.rows} rows in {planned.ranges} batches")
    _write(f"into {pipeline.schema}.{pipeline.table} ({pipeline.write}), by the workers of group {pipeline.group}")
    sys.stdout.writelines(line + "\n" for line in format_columns(("COLUMN", "TYPE"), planned.columns))


def _target(settings: RunPipelineSettings, pipeline: Pipeline) -> PostgresSettings | None:
    """Returns where its rows can be compared with the query: in the sink that it names, or in the configuration's. None
    without either."""
    if not pipeline.sink:
        return settings.target
    place = read_places(settings.catalog.places).sinks[pipeline.sink]
    if place.kind != "postgres":
        return None
    environment = environment_for(read_text(place.config, "configuration file"))
    values = config.load({"config": place.config}, environment, TargetSettings, known=known_options())
    return config.make(TargetSettings, values).target


def _find(settings: RunPipelineSettings, name: str) -> RunnablePipeline:
    async def find() -> RunnablePipeline:
        async with connected(settings.nats, f"pgsluice run {name}") as client:
            return await PipelineCatalog(settings.catalog, settings.nats, settings.own, ControlBucket(client)).find(name)

    return asyncio.run(find())


@dataclass(frozen=True, slots=True)
class ListedRun:
    """``state`` is the record's, or ``applied`` when the rows of a finished run are at every worker's target, or
    ``pausing`` or ``cancelling`` until it is. ``rows`` is the planned number, ``rows_read`` the number in the stream,
    ``dead`` the number on which steps or the query failed. ``rows_applied`` is None before all are; ``unchanged``
    existed at the targets already, unchanged, None where no sink compares them. ``apply_s`` counts from the end of
    reading, None where it is not known."""

    pipeline: str
    run: int
    kind: str
    state: str
    started_at: str
    finished_at: str
    rows: int
    attempts: int
    rows_read: int
    plan_s: float
    read_s: float
    reason: str
    dead: int = 0
    rows_applied: int | None = None
    unchanged: int | None = None
    applied_at: TimeText = ""
    apply_s: float | None = None


def list_runs(settings: RunsSettings, name: str | None, *, as_json: bool) -> None:
    """Lists runs, the newest first. Raises UsageError when there is no such pipeline."""
    found = asyncio.run(_listed(settings, name))
    listed = [run for runs in found.values() for run in runs.runs]
    if as_json:
        sys.stdout.writelines(orjson.dumps(each).decode() + "\n" for each in listed)
        return
    lines = format_columns(_HEADINGS, [_columns(each) for each in listed], numbers=_NUMBERS)
    sys.stdout.writelines(line + "\n" for line in lines)
    for pipeline, runs in found.items():
        if runs.ticks.schedule:
            _write(f"{pipeline}: schedule {runs.ticks.schedule}, {_spoken_ticks(runs)}")


async def _listed(settings: RunsSettings, name: str | None) -> dict[str, PipelineRuns]:
    async with connected(settings.nats, "pgsluice runs") as client:
        catalog = PipelineCatalog(settings.catalog, settings.nats, None, ControlBucket(client))
        pipelines = await catalog.all() if name is None else [await catalog.listed(name)]
        return {each.name: await look_at_runs(client, each.pipeline) for each in pipelines if each.pipeline is not None}


@dataclass(frozen=True, slots=True)
class PipelineRuns:
    """A pipeline's facts in the state bucket. ``has_checkpoint``: an incremental run has a place to begin at, whose
    values are not shown. ``ticks`` are of its current schedule: ``next`` is "" while no process executes that.
    ``requests`` and ``runs`` are the kept ones, the newest first."""

    has_checkpoint: bool = False
    is_paused: bool = False
    ticks: Ticks = field(default_factory=Ticks)
    requests: tuple[RunRequest, ...] = ()
    runs: tuple[ListedRun, ...] = ()


async def look_at_runs(client: Client, pipeline: Pipeline) -> PipelineRuns:
    """Raises TransientError, TerminalError when a record is not of this version's form."""
    bucket = StateBucket(client, GroupNames(pipeline.group))
    if not await bucket.exists():
        return PipelineRuns(ticks=_ticks(pipeline, Ticks()))
    record, requests = await load_pipeline(bucket), await RUN_REQUESTS.load(bucket)
    reports = {} if record is None else await read_reports(bucket)
    if record is not None and record.newest is not None:
        record = record.with_run(with_outcome(record.newest, reports.values()))
    applied = min((report.snapshot_sequence for report in reports.values()), default=0)
    runs = () if record is None else tuple(_listed_run(pipeline.name, run, applied, requests) for run in reversed(record.runs))
    return PipelineRuns(
        has_checkpoint=record is not None and bool(record.checkpoint),
        is_paused=requests.paused,
        ticks=_ticks(pipeline, requests.ticks),
        requests=requests.requests[::-1],
        runs=runs,
    )


def _ticks(pipeline: Pipeline, noted: Ticks) -> Ticks:
    """Returns an executor's notes about ticks, unless it has not seen the current schedule."""
    text = "" if pipeline.schedule is None else pipeline.schedule.text
    return noted if noted.schedule == text else replace(noted, schedule=text, next="")


def wish(settings: RunsSettings, name: str, verb: str) -> None:
    """``verb`` is pause, resume or cancel. Raises UsageError for a pipeline that never ran, or has no run to cancel."""
    _write(asyncio.run(_wish(settings, name, verb)))


async def _wish(settings: RunsSettings, name: str, verb: str) -> str:
    async with connected(settings.nats, f"pgsluice runs {verb}") as client:
        listed = await PipelineCatalog(settings.catalog, settings.nats, None, ControlBucket(client)).listed(name)
        if listed.problem is not None and listed.pipeline is None:
            raise listed.problem
        pipeline = listed.pipeline
        assert pipeline is not None
        bucket = StateBucket(client, GroupNames(pipeline.group))
        if not await bucket.exists():
            raise UsageError(f"pipeline '{pipeline.name}' has never run on this NATS", "check pipelines-config and nats-url")
        match verb:
            case "pause":
                await pause(bucket)
                return f"{pipeline.name} will pause: a current run ends at its next message"
            case "resume":
                await resume(bucket)
                return f"{pipeline.name} is resumed; if no process executes it, run 'pgsluice run {pipeline.name}'"
            case _:
                return f"run {await cancel(bucket)} of {pipeline.name} is cancelled, or will be at its next message"


def _listed_run(pipeline: str, run: RunRecord, applied: int, requests: RunRequests) -> ListedRun:
    return ListedRun(
        pipeline=pipeline,
        run=run.number,
        kind="reconcile" if run.reconciles else "full" if run.is_full else "incremental",
        state=_shown_state(run, applied, requests.wishes(run.number)),
        started_at=run.started_at,
        finished_at=run.finished_at,
        rows=run.rows,
        attempts=run.attempt,
        rows_read=run.rows_read,
        plan_s=round(run.plan_s, 3),
        read_s=round(run.read_s, 3),
        reason=run.reason,
        dead=run.dead,
        rows_applied=_rows_applied(run, applied),
        unchanged=run.unchanged,
        applied_at=run.applied_at,
        apply_s=_rounded(apply_s(run)),
    )


def _rows_applied(run: RunRecord, applied: int) -> int | None:
    """Returns the number of rows that workers wrote, without unchanged ones."""
    if not _is_applied(run, applied):
        return None
    return run.rows if run.reconciles else run.rows_read - (run.unchanged or 0)


def _is_applied(run: RunRecord, applied: int) -> bool:
    return run.state is RunState.FINISHED and applied >= run.last_sequence


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _shown_state(run: RunRecord, applied: int, wish: RunWish) -> str:
    if _is_applied(run, applied):
        return "applied"
    if run.state.is_unfinished and wish is RunWish.CANCEL:
        return "cancelling"
    if run.state is RunState.READING and wish is RunWish.PAUSE:
        return "pausing"
    return str(run.state)


def _columns(run: ListedRun) -> tuple[str, ...]:
    return (
        run.pipeline,
        str(run.run),
        run.kind,
        run.state,
        run.started_at,
        run.finished_at,
        *map(_shown, (run.rows, run.rows_read, run.dead, run.rows_applied, run.unchanged)),
        *map(_shown_seconds, (run.plan_s, run.read_s, run.apply_s)),
        run.reason,
    )


def _shown(count: int | None) -> str:
    return "" if count is None else str(count)


def _shown_seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"


def _spoken_ticks(runs: PipelineRuns) -> str:
    ticks = runs.ticks
    following = "paused" if runs.is_paused else f"next tick {ticks.next}" if ticks.next else "no process executes it"
    return f"{following}, {ticks.missed} missed, {ticks.skipped} skipped"


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
