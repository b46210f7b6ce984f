"""SQL pipelines: which there are, their documents with revisions as ETags, and what a run of one would read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pgsluice.console.documents.document_store import StoredDocument
from pgsluice.console.pipelines.pipeline_catalog import ListedPipeline
from pgsluice.console.pipelines.pipeline_document import PipelineDocument, format_pipeline, parse_pipeline_document
from pgsluice.console.pipelines.pipeline_runs import ListedRun, look_at_runs
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.endpoint_table import PREFIX, Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.revisions import check_revision, delete_named, stale
from pgsluice.replicator.pipelines.pipeline_run import planned
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.errors import TerminalError, UsageError

PLANNING_S = 60.0


@dataclass(frozen=True, slots=True)
class PipelineView:
    """``problem`` and ``remedy`` are why it may not run, "" when it may. ``document`` is the document's revision, None
    for a pipeline of the server's file. The rest is empty for an unreadable one. ``has_checkpoint`` and later fields
    are about its runs; ``newest`` is None before the first. ``next_tick`` is "" while no process executes ``schedule``."""

    name: str
    document: int | None
    problem: str
    remedy: str
    group: str = ""
    target: str = ""
    mode: str = ""
    write: str = ""
    source: str = ""
    sink: str = ""
    has_checkpoint: bool = False
    is_paused: bool = False
    waiting: int = 0
    schedule: str = ""
    next_tick: TimeText = ""
    newest: ListedRun | None = None


@dataclass(frozen=True, slots=True)
class PipelineList:
    """Pipelines of the server's file, then documents by name."""

    pipelines: tuple[PipelineView, ...]


@dataclass(frozen=True, slots=True)
class PipelineDocumentView:
    """``yaml`` is the body of ``PUT``: the text of a pipelines file under the name."""

    name: str
    yaml: str
    revision: int
    applied_at: TimeText
    applied_by: str


@dataclass(frozen=True, slots=True)
class PipelineDocumentList:
    """The newest first."""

    documents: tuple[PipelineDocumentView, ...]


@dataclass(frozen=True, slots=True)
class ShownPipeline:
    """``document`` is None for a pipeline of the server's file, and for an unreadable one."""

    pipeline: PipelineView
    document: PipelineDocumentView | None


@dataclass(frozen=True, slots=True)
class PipelineText:
    """The text of a pipelines file under the pipeline's name. ``reason`` is for the audit."""

    yaml: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``full``: all rows, whatever was read before."""

    full: bool = False


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class PlanView:
    """``is_resumed``: a run would take up what is left of one, whose rows and batches these are."""

    is_full: bool
    is_resumed: bool
    rows: int
    batches: int
    columns: tuple[PlannedColumn, ...]


async def list_pipelines(call: Call) -> Answer:
    shown = [each for each in await call.parts.pipelines.all() if _is_shown(call, each)]
    return Answer(PipelineList(tuple([await _view(call, each) for each in shown])))


async def show_pipeline(call: Call) -> Answer:
    listed = await found_pipeline(call)
    is_there = listed.document is not None and not isinstance(listed.problem, TerminalError)
    stored = await call.parts.pipeline_documents.find(listed.name) if is_there else None
    document = None if stored is None else _document_view(stored)
    return Answer(ShownPipeline(await _view(call, listed), document), revision=None if stored is None else stored.revision)


async def show_history(call: Call) -> Answer:
    name, documents = call.path["pipeline"], call.parts.pipeline_documents
    if name not in await documents.names() or not await _is_open(call):
        raise _without_document(name)
    return Answer(PipelineDocumentList(tuple(map(_document_view, await documents.history(name)))))


async def put_pipeline(call: Call) -> Answer:
    """Creates a pipeline without If-Match; replaces one only if the request names its revision."""
    name, documents = call.path["pipeline"], call.parts.pipeline_documents
    try:
        document = await call.parts.parsed(call.who, parse_pipeline_document, "the body", call.body.yaml, name)
        await call.parts.pipelines.check_document(document)
    except UsageError as error:
        raise Problem(ProblemKind.MALFORMED, error.fact, error.remedy, "yaml") from None
    group = document.parsed().group
    call.who.check_group(group)
    if not await _is_open(call):
        raise Problem(
            ProblemKind.FORBIDDEN, f"pipeline '{name}' is of a group that '{call.who.name}' may not see", "give it another name"
        )
    revision = await documents.revision(name)
    check_revision(call, revision, _spoken(name))
    written = await documents.put(document, call.who.name, revision)
    if written is None:
        raise stale(_spoken(name))
    status = 201 if revision is None else 200
    location = f"{PREFIX}/pipelines/{name}"
    return Answer(_document_view(written), status, written.revision, location, name, revision, (group,))


async def delete_pipeline(call: Call) -> Answer:
    """Deletes a pipeline, also one that cannot be read."""
    name = call.path["pipeline"]
    is_open = await _is_open(call)
    revision = await delete_named(call, call.parts.pipeline_documents, name, _spoken(name)) if is_open else None
    if revision is None:
        raise _without_document(name)
    return Answer(target=name, revision_before=revision)


async def plan(call: Call) -> Answer:
    await found_pipeline(call)
    found = await call.parts.pipelines.find(call.path["pipeline"])
    try:
        async with asyncio.timeout(PLANNING_S):
            wanted = await planned(found.settings, found.pipeline, full=call.body.full)
    except TimeoutError:
        raise Problem(
            ProblemKind.UNAVAILABLE, f"the source took more than {PLANNING_S:g} s", "'pgsluice run --dry-run' waits for longer"
        ) from None
    columns = tuple(PlannedColumn(name, type_name) for name, type_name in wanted.columns)
    content = PlanView(wanted.is_full, wanted.is_resumed, wanted.rows, wanted.ranges, columns)
    return Answer(content, target=found.pipeline.name, groups=(found.pipeline.group,))


async def found_pipeline(call: Call) -> ListedPipeline:
    """Returns the one that the path names, whether it may run or not."""
    name = call.path["pipeline"]
    found = await _named(call)
    if found is None or not _is_shown(call, found):
        raise Problem(ProblemKind.NOT_FOUND, f"there is no pipeline '{name}'", "GET /pipelines shows those there are")
    return found


async def _named(call: Call) -> ListedPipeline | None:
    """Returns the pipeline of that name. One of the file takes precedence over a document of the same name, as it does when a
    run begins."""
    return next((each for each in await call.parts.pipelines.all() if each.name == call.path["pipeline"]), None)


async def _is_open(call: Call) -> bool:
    """Returns whether the pipeline of that name, if it exists, belongs to a group that the principal may see."""
    found = None if call.who.sees_all else await _named(call)
    return found is None or _is_shown(call, found)


def _is_shown(call: Call, listed: ListedPipeline) -> bool:
    """Returns whether the principal may see the pipeline. One that cannot be read may be of any group."""
    return call.who.sees_all or (listed.pipeline is not None and call.who.sees(listed.pipeline.group))


async def _view(call: Call, listed: ListedPipeline) -> PipelineView:
    problem, pipeline = listed.problem, listed.pipeline
    fact, remedy = ("", "") if problem is None else (problem.fact, problem.remedy)
    if pipeline is None:
        return PipelineView(listed.name, listed.document, fact, remedy)
    runs = await look_at_runs(call.parts.client, pipeline)
    return PipelineView(
        name=listed.name,
        document=listed.document,
        problem=fact,
        remedy=remedy,
        group=pipeline.group,
        target=f"{pipeline.schema}.{pipeline.table}",
        mode=pipeline.mode.value,
        write=pipeline.write.value,
        source=pipeline.source,
        sink=pipeline.sink,
        has_checkpoint=runs.has_checkpoint,
        is_paused=runs.is_paused,
        waiting=sum(request.state.is_open for request in runs.requests),
        schedule=runs.ticks.schedule,
        next_tick=runs.ticks.next,
        newest=runs.runs[0] if runs.runs else None,
    )


def _document_view(stored: StoredDocument[PipelineDocument]) -> PipelineDocumentView:
    document = stored.document
    return PipelineDocumentView(
        document.name, format_pipeline(document), stored.revision, document.applied_at, document.applied_by
    )


def _without_document(name: str) -> Problem:
    return Problem(ProblemKind.NOT_FOUND, f"there is no document of pipeline '{name}'", "PUT one")


def _spoken(name: str) -> str:
    return f"the document of pipeline '{name}' is"


ENDPOINTS = (
    Endpoint(
        "GET", "/pipelines", "SQL pipelines, and how each fares", Role.VIEWER, list_pipelines, answer=PipelineList, rows=Rows.STAY
    ),
    Endpoint("GET", "/pipelines/{pipeline}", "One of them", Role.VIEWER, show_pipeline, answer=ShownPipeline, rows=Rows.STAY),
    Endpoint(
        "GET",
        "/pipelines/{pipeline}/history",
        "List earlier revisions of its document",
        Role.VIEWER,
        show_history,
        answer=PipelineDocumentList,
        rows=Rows.STAY,
    ),
    Endpoint(
        "PUT",
        "/pipelines/{pipeline}",
        "Apply a pipeline, within the connections that the administrator allows",
        Role.ADMIN,
        put_pipeline,
        answer=PipelineDocumentView,
        body=PipelineText,
        names_revision=True,
        rows=Rows.SENT,
    ),
    Endpoint(
        "DELETE",
        "/pipelines/{pipeline}",
        "Remove a pipeline's document; rows that it has read stay",
        Role.ADMIN,
        delete_pipeline,
        status=204,
        names_revision=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/pipelines/{pipeline}/plan",
        "Preview the rows that a run would read; the stream stays unchanged",
        Role.OPERATOR,
        plan,
        answer=PlanView,
        body=PlanRequest,
        rows=Rows.STAY,
    ),
)
