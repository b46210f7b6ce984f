"""Documents of groups in the control bucket, each with its revisions: who replaces one names what they have read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.shared.broker.bucket import Entry

_PREFIX = "group."


def group_of_key(key: str) -> str | None:
    """Whose document the control bucket has under ``key``; None for any other key."""
    return key.removeprefix(_PREFIX) if key.startswith(_PREFIX) else None


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """``revision`` is what the next writer has to name."""

    document: GroupDocument
    revision: int


class DocumentStore:
    """Every method raises TransientError when NATS does not answer."""

    def __init__(self, bucket: ControlBucket) -> None:
        self._bucket = bucket

    async def find(self, group: str) -> StoredDocument | None:
        entry = await self._bucket.read(_PREFIX + group, GroupDocument)
        return None if entry is None else _stored(entry)

    async def groups(self) -> list[str]:
        """Those that have a document, or had one. None when there is no bucket yet."""
        if not await self._bucket.exists():
            return []
        return [group for key in await self._bucket.keys() if (group := group_of_key(key)) is not None]

    async def all(self) -> list[StoredDocument]:
        """By group."""
        found = [await self.find(group) for group in await self.groups()]
        return [stored for stored in found if stored is not None]

    async def history(self, group: str) -> list[StoredDocument]:
        """What is kept of it, the newest first; a time when there was none is left out."""
        return [_stored(entry) for entry in await self._bucket.read_history(_PREFIX + group, GroupDocument)]

    async def put(self, document: GroupDocument, by: str, revision: int | None) -> StoredDocument | None:
        """In the place of ``revision``; None: where there is none. None when it is another one by now."""
        stamped = replace(document, applied_at=datetime.now(UTC).isoformat(), applied_by=by)
        key = _PREFIX + document.group
        if revision is None:
            written = await self._bucket.create(key, stamped)
        else:
            written = await self._bucket.update(key, stamped, revision)
        return None if written is None else StoredDocument(stamped, written)

    async def delete(self, group: str, revision: int) -> bool:
        """False when it is another revision by now. Its history stays."""
        return await self._bucket.delete(_PREFIX + group, revision)


def _stored(entry: Entry[GroupDocument]) -> StoredDocument:
    return StoredDocument(entry.value, entry.revision)
