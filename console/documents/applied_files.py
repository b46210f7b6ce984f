"""The work of ``pgsluice plan``, ``apply`` and ``export`` with files and standard output."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import orjson

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_plan import Action, PlannedDocument, apply_documents, plan_documents
from pgsluice.console.documents.document_store import DocumentStore, StoredDocument
from pgsluice.console.documents.group_document import GroupDocument, format_document, parse_document
from pgsluice.console.flags import known_options
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.server_settings import DocumentSettings
from pgsluice.shared.config.yaml_nodes import read_text
from pgsluice.shared.errors import PgsluiceError, UsageError
from pgsluice.shared.process.user import user_name

STANDARD_INPUT = "-"
CHANGES = 1
"""The exit code of a plan by which something would change."""

MOST_DOCUMENTS = 200
"""The most documents in one text."""

_BORDER = re.compile(r"^---[ \t]*$", re.MULTILINE)
"""The line between documents of one text."""

T = TypeVar("T")


def read_documents(place: str, text: str) -> list[GroupDocument]:
    """Returns all documents in ``text``. Raises UsageError with all that is wrong with one of them."""
    known = {option.name: option for option in known_options()}
    parts = [part for part in _BORDER.split(text) if part.strip()]
    if len(parts) > MOST_DOCUMENTS:
        raise UsageError(f"{place} holds more than {MOST_DOCUMENTS} documents", "apply it in several parts")
    return [parse_document(place, part, known) for part in parts]


def show_plan(settings: DocumentSettings, files: Sequence[str], *, as_json: bool) -> int:
    """Returns the exit code: CHANGES when something would change."""
    documents = _read(files)
    planned = _with_store(settings, lambda store: plan_documents(store, documents))
    for each in planned:
        sys.stdout.write(orjson.dumps(each).decode() + "\n" if as_json else _format_planned(each))
    return CHANGES if any(each.action is not Action.NONE for each in planned) else 0


def apply_files(settings: DocumentSettings, files: Sequence[str]) -> None:
    """Applies the files, and prints the changes."""
    documents = _read(files)

    async def apply(store: DocumentStore[GroupDocument]) -> list[PlannedDocument]:
        return await apply_documents(store, documents, user_name())

    done = {Action.CREATE: "created", Action.CHANGE: "changed", Action.NONE: "as it was"}
    for each in _with_store(settings, apply):
        sys.stdout.write(f"{each.group}: {done[each.action]}\n")


def export_documents(settings: DocumentSettings, groups: Sequence[str]) -> None:
    """Raises UsageError for a group without a document. When a document cannot be read, raises UsageError with its problems
    after all others are written."""

    async def read(store: DocumentStore[GroupDocument]) -> tuple[list[StoredDocument[GroupDocument]], list[PgsluiceError]]:
        if not groups:
            return await store.readable()
        found = {group: await store.find(group) for group in groups}
        missing = sorted(group for group, stored in found.items() if stored is None)
        if missing:
            raise UsageError(f"group '{missing[0]}' has no document", "'pgsluice apply -f FILE' makes one")
        return [stored for _, stored in sorted(found.items()) if stored is not None], []

    stored, problems = _with_store(settings, read)
    sys.stdout.write("---\n".join(format_document(each.document) for each in stored))
    if problems:
        raise problems[0]


def _read(files: Sequence[str]) -> list[GroupDocument]:
    texts = [
        ("standard input", sys.stdin.read()) if file == STANDARD_INPUT else (file, read_text(file, "document")) for file in files
    ]
    return [document for place, text in texts for document in read_documents(place, text)]


def _format_planned(planned: PlannedDocument) -> str:
    lines = [f"{planned.group}: {planned.action.value}"]
    for change in planned.changes:
        if not change.before:
            lines.append(f"  + {change.name}: {change.after}")
        elif not change.after:
            lines.append(f"  - {change.name}: {change.before}")
        else:
            lines.append(f"  ~ {change.name}: {change.before} -> {change.after}")
    return "".join(f"{line}\n" for line in lines)


def _with_store(settings: DocumentSettings, work: Callable[[DocumentStore[GroupDocument]], Awaitable[T]]) -> T:
    async def answer() -> T:
        async with connected(settings.nats, "pgsluice documents") as client:
            bucket = ControlBucket(client)
            await bucket.make(settings.replicas)
            return await work(DocumentStore(bucket, GroupDocument))

    return asyncio.run(answer())
