"""Plans and carries out the application of documents: all of them, or up to the first that another client changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.documents.group_document import GroupDocument, format_raw
from pgsluice.shared.errors import TerminalError, TransientError, UsageError


class Action(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Texts as YAML has them, "" for a setting that was not or is no longer given. No secret: documents hold none."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class PlannedDocument:
    """``revision`` is what would be replaced, None where there is no document. Processes take up a change when they start."""

    group: str
    action: Action
    revision: int | None
    changes: tuple[SettingChange, ...]


async def plan_documents(store: DocumentStore[GroupDocument], documents: Iterable[GroupDocument]) -> list[PlannedDocument]:
    """Returns the plan in the order given. Raises UsageError for two of one group, TransientError."""
    planned: dict[str, PlannedDocument] = {}
    for document in documents:
        if document.group in planned:
            raise UsageError(f"there are two documents of group '{document.group}'", "apply one of them")
        planned[document.group] = _planned(document, *await _there(store, document.group))
    return list(planned.values())


async def apply_documents(
    store: DocumentStore[GroupDocument], documents: Iterable[GroupDocument], by: str
) -> list[PlannedDocument]:
    """Applies documents; returns the changes. Unchanged ones are not written again, so it can be repeated after an
    interruption. Raises UsageError, TransientError when another client changed a document meanwhile: those before it
    are applied."""
    given = list(documents)
    plan = await plan_documents(store, given)
    for document, planned in zip(given, plan, strict=True):
        if planned.action is not Action.NONE and await store.put(document, by, planned.revision) is None:
            raise TransientError(
                f"another client has changed the configuration of group '{document.group}' meanwhile", "plan and apply again"
            )
    return plan


async def _there(store: DocumentStore[GroupDocument], group: str) -> tuple[GroupDocument, int | None]:
    """Returns the group's document and its revision. One that cannot be read is treated as empty, and replaced
    nevertheless."""
    try:
        stored = await store.find(group)
    except TerminalError:
        return GroupDocument(group, {}), await store.revision(group)
    return (GroupDocument(group, {}), None) if stored is None else (stored.document, stored.revision)


def _planned(document: GroupDocument, there: GroupDocument, revision: int | None) -> PlannedDocument:
    before: Mapping[str, object] = there.settings
    names = sorted(before.keys() | document.settings.keys())
    changes = tuple(
        SettingChange(name, format_raw(there.raw(name)), format_raw(document.raw(name)))
        for name in names
        if before.get(name) != document.settings.get(name)
    )
    if revision is None:
        return PlannedDocument(document.group, Action.CREATE, None, changes)
    return PlannedDocument(document.group, Action.CHANGE if changes else Action.NONE, revision, changes)
