"""Documents in the control bucket, each with its revisions: who replaces one names what they have read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.shared.broker.bucket import Entry
from pgsluice.shared.broker.record import MalformedError, decode, malformed
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError

MOST_RECORD_BYTES = 128 * 1024
"""The most bytes of a stored document: JSON, in which some characters take two bytes, with who applied it and when."""


class Document(Protocol):
    """A record whose key in the bucket is KEY_PREFIX and its name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    KEY_PREFIX: ClassVar[str]
    MALFORMED_REMEDY: ClassVar[str]

    @property
    def name(self) -> str: ...

    def stamped(self, at: str, by: str) -> Self:
        """Returns the document, applied at that time by that user."""

    def check(self) -> None:
        """Raises UsageError for a document that pgsluice never stores: any client of the broker may have stored it."""


D = TypeVar("D", bound=Document)


def document_name(key: str, kind: type[Document]) -> str | None:
    """Returns the name of the document of that kind that the control bucket has under ``key``; None for any other key."""
    return key.removeprefix(kind.KEY_PREFIX) if key.startswith(kind.KEY_PREFIX) else None


@dataclass(frozen=True, slots=True)
class StoredDocument(Generic[D]):
    """``revision`` is what the next writer has to name."""

    document: D
    revision: int


class DocumentStore(Generic[D]):
    """The documents of one kind. Every method raises TransientError when NATS does not answer, TerminalError for a record that is
    no such document."""

    def __init__(self, bucket: ControlBucket, kind: type[D]) -> None:
        self._bucket = bucket
        self._kind = kind

    async def find(self, name: str) -> StoredDocument[D] | None:
        entry = await self._bucket.get(self._key(name))
        return None if entry is None else self._read(name, entry)

    async def revision(self, name: str) -> int | None:
        """Returns the revision, also of a document that cannot be read; None without. ``name`` is one that a document
        may have."""
        entry = await self._bucket.get(self._key(name))
        return None if entry is None else entry.revision

    async def names(self) -> list[str]:
        """Returns the names of existing or former documents. Empty when there is no bucket yet."""
        if not await self._bucket.exists():
            return []
        return [name for key in await self._bucket.keys() if (name := document_name(key, self._kind)) is not None]

    async def readable(self) -> tuple[list[StoredDocument[D]], list[PgsluiceError]]:
        """Returns the documents by name; and the errors of unreadable ones."""
        found: list[StoredDocument[D]] = []
        problems: list[PgsluiceError] = []
        for name in await self.names():
            try:
                stored = await self.find(name)
            except TerminalError as problem:
                problems.append(problem)
            else:
                found += [] if stored is None else [stored]
        return found, problems

    async def history(self, name: str) -> list[StoredDocument[D]]:
        """Returns the revisions that NATS keeps of the document, the newest first, without deletions and without revisions
        that cannot be read."""
        found = []
        for entry in await self._bucket.read_history(self._key(name)):
            with contextlib.suppress(TerminalError):
                found.append(self._read(name, entry))
        return found

    async def put(self, document: D, by: str, revision: int | None) -> StoredDocument[D] | None:
        """Replaces ``revision``, or creates the document (None). Returns None when the revision is another one by now."""
        stamped, key = document.stamped(datetime.now(UTC).isoformat(), by), self._key(document.name)
        if revision is None:
            written = await self._bucket.create(key, stamped)
        else:
            written = await self._bucket.update(key, stamped, revision)
        return None if written is None else StoredDocument(stamped, written)

    async def delete(self, name: str, revision: int) -> bool:
        """Returns False when it is another revision by now. Its history stays."""
        return await self._bucket.delete(self._key(name), revision)

    def _read(self, name: str, entry: Entry[bytes]) -> StoredDocument[D]:
        try:
            if len(entry.value) > MOST_RECORD_BYTES:
                raise MalformedError(f"it has more than {MOST_RECORD_BYTES >> 10} KiB")
            document = decode(self._kind, entry.value)
            if document.name != name:
                raise MalformedError("it holds another name")
            document.check()
        except (MalformedError, UsageError) as error:
            reason = error.fact if isinstance(error, UsageError) else error
            raise malformed(self._key(name), self._bucket.described, reason, self._kind.MALFORMED_REMEDY) from None
        return StoredDocument(document, entry.revision)

    def _key(self, name: str) -> str:
        return self._kind.KEY_PREFIX + name
