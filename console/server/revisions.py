"""Checks the revision that a request replaces: an object is created without If-Match, and replaced if its revision is named."""

from __future__ import annotations

from typing import Any

from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.server.endpoint_table import Call
from pgsluice.console.server.problem import Problem, ProblemKind


def check_revision(call: Call, revision: int | None, what: str) -> None:
    """``revision`` is the current one, None for nothing. Raises Problem when the request does not name it."""
    if revision is None and call.revision is None:
        return
    if call.revision is None:
        raise Problem(
            ProblemKind.REVISION_WANTED,
            "If-Match is missing",
            "send the ETag of the revision that you have read, or *",
            "If-Match",
        )
    if call.revision != "*" and call.revision != revision:
        raise stale(what)


async def delete_named(call: Call, documents: DocumentStore[Any], name: str, what: str) -> int | None:
    """Deletes a document, also one that cannot be read. Returns its revision; None if it does not exist. Raises Problem
    as ``check_revision``. ``name`` may be any text."""
    revision = await documents.revision(name) if name in await documents.names() else None
    if revision is not None:
        check_revision(call, revision, what)
        if not await documents.delete(name, revision):
            raise stale(what)
    return revision


def stale(what: str) -> Problem:
    """Returns the problem after another client's change. ``what`` begins the sentence."""
    return Problem(
        ProblemKind.STALE, f"{what} of another revision", "read it again, and send the change for the new revision", "If-Match"
    )
