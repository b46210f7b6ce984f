"""Runs of a SQL pipeline: listed, requested, paused, resumed, cancelled. The pipeline's executor carries these out."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.console.pipelines.pipeline_runs import ListedRun, PipelineRuns, look_at_runs
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.pipeline_api import found_pipeline
from pgsluice.console.server.endpoint_table import PREFIX, Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.pipelines.run_requests import RunRequest, Ticks, ask_for_run, cancel, pause, resume
from pgsluice.shared.wire.names import GroupNames


@dataclass(frozen=True, slots=True)
class RunList:
    """Both the newest first. A request names its run when it has one. ``ticks`` are those of its schedule."""

    runs: tuple[ListedRun, ...]
    requests: tuple[RunRequest, ...]
    ticks: Ticks


@dataclass(frozen=True, slots=True)
class AskRequest:
    """``full``: all rows are read, whatever was read before, and what is left of an earlier run is abandoned."""

    full: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WishRequest:
    """``reason`` is for the audit."""

    reason: str = ""


async def list_runs(call: Call) -> Answer:
    _, found = await _runs(call)
    return Answer(RunList(found.runs, found.requests, found.ticks))


async def show_run(call: Call) -> Answer:
    _, found = await _runs(call)
    return Answer(_named(call, found))


async def ask(call: Call) -> Answer:
    """One request for each Idempotency-Key; without one, each time another."""
    await found_pipeline(call)
    runnable = await call.parts.pipelines.find(call.path["pipeline"])
    bucket = StateBucket(call.parts.client, GroupNames(runnable.pipeline.group))
    await bucket.make(call.parts.settings.replicas)
    request = await ask_for_run(bucket, call.request_id, full=call.body.full)
    location = f"{PREFIX}/pipelines/{runnable.pipeline.name}/requests/{request.id}"
    return Answer(request, location=location, target=runnable.pipeline.name, groups=(runnable.pipeline.group,))


async def show_request(call: Call) -> Answer:
    _, found = await _runs(call)
    request = next((each for each in found.requests if each.id == call.path["request"]), None)
    if request is None:
        raise Problem(ProblemKind.NOT_FOUND, "there is no such request", "the oldest that are done are forgotten")
    return Answer(request)


async def pause_run(call: Call) -> Answer:
    pipeline, run = await _steerable(call)
    if run.state not in ("reading", "pausing", "paused", "interrupted", "failed"):
        raise Problem(ProblemKind.CONFLICT, f"run {run.run} is {run.state}, so there is nothing to pause")
    await pause(_bucket(call, pipeline))
    return await _steered(call, run)


async def resume_run(call: Call) -> Answer:
    pipeline, run = await _steerable(call)
    await resume(_bucket(call, pipeline))
    return await _steered(call, run)


async def cancel_run(call: Call) -> Answer:
    pipeline, run = await _steerable(call)
    if run.state == "cancelled":
        return await _steered(call, run)
    if run.state in ("finished", "applied", "abandoned"):
        raise Problem(ProblemKind.CONFLICT, f"run {run.run} is {run.state}, so there is nothing to cancel")
    await cancel(_bucket(call, pipeline))
    return await _steered(call, run)


async def _runs(call: Call) -> tuple[Pipeline, PipelineRuns]:
    """Returns the pipeline that the path names, if it can be read, and its runs."""
    listed = await found_pipeline(call)
    if listed.pipeline is None:
        assert listed.problem is not None
        raise Problem(ProblemKind.CONFLICT, listed.problem.fact, listed.problem.remedy)
    return listed.pipeline, await look_at_runs(call.parts.client, listed.pipeline)


def _named(call: Call, found: PipelineRuns) -> ListedRun:
    named = call.path["run"]
    run = next((each for each in found.runs if str(each.run) == named), None)
    if run is None:
        raise Problem(ProblemKind.NOT_FOUND, "there is no such run", "GET /pipelines/{pipeline}/runs shows those that are kept")
    return run


async def _steerable(call: Call) -> tuple[Pipeline, ListedRun]:
    """Returns the pipeline and the named run, which must be the newest."""
    pipeline, found = await _runs(call)
    run = _named(call, found)
    if run != found.runs[0]:
        raise Problem(ProblemKind.CONFLICT, f"run {run.run} is over", f"run {found.runs[0].run} is the newest")
    return pipeline, run


async def _steered(call: Call, run: ListedRun) -> Answer:
    pipeline, found = await _runs(call)
    location, target = f"{PREFIX}/pipelines/{run.pipeline}/runs/{run.run}", f"{run.pipeline} run {run.run}"
    return Answer(_named(call, found), location=location, target=target, groups=(pipeline.group,))


def _bucket(call: Call, pipeline: Pipeline) -> StateBucket:
    return StateBucket(call.parts.client, GroupNames(pipeline.group))


_RUN = "/pipelines/{pipeline}/runs/{run}"

ENDPOINTS = (
    Endpoint(
        "GET",
        "/pipelines/{pipeline}/runs",
        "Its runs and requests",
        Role.VIEWER,
        list_runs,
        answer=RunList,
        rows=Rows.STAY,
    ),
    Endpoint("GET", _RUN, "One run", Role.VIEWER, show_run, answer=ListedRun, rows=Rows.STAY),
    Endpoint(
        "POST",
        "/pipelines/{pipeline}/runs",
        "Ask for a run",
        Role.OPERATOR,
        ask,
        answer=RunRequest,
        status=202,
        body=AskRequest,
        takes_key=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/pipelines/{pipeline}/requests/{request}",
        "Show the result of a request",
        Role.VIEWER,
        show_request,
        answer=RunRequest,
        rows=Rows.STAY,
    ),
    *(
        Endpoint(
            "POST",
            f"{_RUN}/{verb}",
            summary,
            Role.OPERATOR,
            handler,
            answer=ListedRun,
            status=202,
            body=WishRequest,
            takes_key=True,
            rows=Rows.STAY,
        )
        for verb, summary, handler in (
            ("pause", "End a run at its next message, and begin none before it is resumed", pause_run),
            ("resume", "Resume runs, a paused one first", resume_run),
            ("cancel", "End a run at its next message, permanently", cancel_run),
        )
    ),
)
