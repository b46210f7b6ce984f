"""Documents of groups: planned, applied, exported; each with its revision as ETag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgsluice.console.documents.applied_files import MOST_DOCUMENTS, read_documents
from pgsluice.console.documents.document_plan import PlannedDocument, apply_documents, plan_documents
from pgsluice.console.documents.document_settings import Bounds, check_bounds
from pgsluice.console.documents.document_store import StoredDocument
from pgsluice.console.documents.group_document import GroupDocument, format_document
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.endpoint_table import PREFIX, Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.revisions import check_revision, delete_named, stale
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.errors import UsageError


@dataclass(frozen=True, slots=True)
class DocumentView:
    """``yaml`` is the body of ``PUT``; secrets are references in it. ``problem`` names a reference that the
    administrator does not allow, so that the server neither connects to its source nor runs it; "" without one."""

    group: str
    yaml: str
    revision: int
    applied_at: TimeText
    applied_by: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DocumentList:
    """Documents by group, or of one group the newest first."""

    documents: tuple[DocumentView, ...]


@dataclass(frozen=True, slots=True)
class DocumentText:
    """The group's configuration file. ``reason`` is for the audit."""

    yaml: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DocumentTexts:
    """Files; one can contain several documents, with --- between. ``reason`` is for the audit."""

    documents: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DocumentPlan:
    documents: tuple[PlannedDocument, ...]


async def list_documents(call: Call) -> Answer:
    """Returns readable documents; the error of another one is returned when it is requested."""
    found, _ = await call.parts.documents.readable()
    return Answer(DocumentList(tuple(_view(call, each) for each in found if call.who.sees(each.document.group))))


async def show_document(call: Call) -> Answer:
    stored = await _found(call)
    return Answer(_view(call, stored), revision=stored.revision)


async def show_history(call: Call) -> Answer:
    return Answer(DocumentList(tuple(_view(call, each) for each in await call.parts.documents.history(call.path["group"]))))


async def put_document(call: Call) -> Answer:
    """Creates a document without If-Match; replaces one only if the request names its revision, whether it can be read
    or not."""
    found = await call.parts.parsed(call.who, _read_allowed, {"the body": call.body.yaml}, call.parts.bounds)
    document = _only(found, call.path["group"])
    revision = await call.parts.documents.revision(document.group)
    check_revision(call, revision, _spoken(document.group))
    written = await call.parts.documents.put(document, call.who.name, revision)
    if written is None:
        raise stale(_spoken(document.group))
    call.parts.looks.renew(document.group)
    status = 201 if revision is None else 200
    location = f"{PREFIX}/groups/{document.group}/document"
    return Answer(_view(call, written), status, written.revision, location, document.group, revision)


async def delete_document(call: Call) -> Answer:
    """Deletes a document, also one that cannot be read."""
    group = call.path["group"]
    revision = await delete_named(call, call.parts.documents, group, _spoken(group))
    if revision is None:
        raise _without_document(group)
    call.parts.looks.renew(group)
    return Answer(target=group, revision_before=revision)


async def plan(call: Call) -> Answer:
    planned = await plan_documents(call.parts.documents, await _documents(call))
    return Answer(DocumentPlan(tuple(planned)), target=_targets(planned), groups=tuple(each.group for each in planned))


async def apply(call: Call) -> Answer:
    done = await apply_documents(call.parts.documents, await _documents(call), call.who.name)
    for each in done:
        call.parts.looks.renew(each.group)
    return Answer(DocumentPlan(tuple(done)), target=_targets(done), groups=tuple(each.group for each in done))


async def export(call: Call) -> Answer:
    """Answers with the documents that can be read, and a remark on each that cannot."""
    found, problems = await call.parts.documents.readable()
    remarks = "".join(f"# left out: {problem.fact}\n" for problem in problems)
    shown = [each.document for each in found if call.who.sees(each.document.group)]
    return Answer(remarks + "---\n".join(map(format_document, shown)))


async def _documents(call: Call) -> list[GroupDocument]:
    if len(call.body.documents) > MOST_DOCUMENTS:
        raise Problem(ProblemKind.MALFORMED, f"there are more than {MOST_DOCUMENTS} documents", "send less at once", "documents")
    texts = {f"documents[{i}]": text for i, text in enumerate(call.body.documents)}
    found = await call.parts.parsed(call.who, _read_allowed, texts, call.parts.bounds)
    if not found:
        raise Problem(
            ProblemKind.MALFORMED, "there is no document in it", "send YAML as the configuration file has it", "documents"
        )
    for document in found:
        call.who.check_group(document.group)
    return found


def _read_allowed(texts: Mapping[str, str], bounds: Bounds) -> list[GroupDocument]:
    """``texts`` by their places. Raises UsageError also for what one of them may not name."""
    found = [each for place, text in texts.items() for each in read_documents(place, text)]
    for document in found:
        check_bounds(document, bounds)
    return found


def _only(documents: list[GroupDocument], group: str) -> GroupDocument:
    if len(documents) != 1 or documents[0].group != group:
        raise Problem(
            ProblemKind.MALFORMED, f"the body is not one document of group '{group}'", f"write 'group: {group}'", "yaml"
        )
    return documents[0]


async def _found(call: Call) -> StoredDocument[GroupDocument]:
    stored = await call.parts.documents.find(call.path["group"])
    if stored is None:
        raise _without_document(call.path["group"])
    return stored


def _without_document(group: str) -> Problem:
    return Problem(ProblemKind.NOT_FOUND, f"group '{group}' has no document", "PUT one, or 'pgsluice apply -f FILE'")


def _spoken(group: str) -> str:
    return f"the document of group '{group}' is"


def _targets(planned: list[PlannedDocument]) -> str:
    return ", ".join(each.group for each in planned)


def _view(call: Call, stored: StoredDocument[GroupDocument]) -> DocumentView:
    document, problem = stored.document, ""
    try:
        check_bounds(document, call.parts.bounds)
    except UsageError as error:
        problem = str(error)
    written = document.applied_at, document.applied_by
    return DocumentView(document.group, format_document(document), stored.revision, *written, problem)


ENDPOINTS = (
    Endpoint("GET", "/documents", "The documents of groups", Role.VIEWER, list_documents, answer=DocumentList, rows=Rows.STAY),
    Endpoint(
        "GET", "/export", "All documents as YAML", Role.VIEWER, export, answer=str, media_type="application/yaml", rows=Rows.STAY
    ),
    Endpoint(
        "GET",
        "/groups/{group}/document",
        "The document of a group",
        Role.VIEWER,
        show_document,
        answer=DocumentView,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/groups/{group}/document/history",
        "Its earlier documents",
        Role.VIEWER,
        show_history,
        answer=DocumentList,
        rows=Rows.STAY,
    ),
    Endpoint(
        "PUT",
        "/groups/{group}/document",
        "Apply a group's configuration",
        Role.ADMIN,
        put_document,
        answer=DocumentView,
        body=DocumentText,
        names_revision=True,
        rows=Rows.SENT,
    ),
    Endpoint(
        "DELETE",
        "/groups/{group}/document",
        "Remove a group's configuration; its processes and objects stay",
        Role.ADMIN,
        delete_document,
        status=204,
        names_revision=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/plan",
        "The changes that applying documents would make",
        Role.VIEWER,
        plan,
        answer=DocumentPlan,
        body=DocumentTexts,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/apply",
        "Apply configurations of groups, up to the first that fails",
        Role.ADMIN,
        apply,
        answer=DocumentPlan,
        body=DocumentTexts,
        takes_key=True,
        rows=Rows.SENT,
    ),
)
