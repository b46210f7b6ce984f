"""Documents whose rows came without values that an update left as they were: read, completed, stored again.

PostgreSQL does not send a large value that did not change, and a bulk update takes no version of ours. So the driver reads these
documents, when every task of the batch is done, and stores them whole with the version of the change. That is safe: one
worker writes an index at a time, what is newer than the change wins by its version, and what the tasks of this batch wrote
is there. A document that is not there was deleted by a later change, which the server remembers, or nobody knows the
value: that change is set aside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pgsluice.shared.errors import Cause, OverloadError, TransientError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.search.bulk import Operation
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery, Refused
from pgsluice.worker.sinks.search.document import Fields, RowId, document_of, read_fields
from pgsluice.worker.sinks.search.document_fold import At, Patch
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.request_size import RequestSize
from pgsluice.worker.sinks.search.server_connection import JSON, ServerConnection, raise_refused

MGET_DOCUMENTS = 100
"""So many are read at once: their values are the large ones."""

DocumentId = tuple[str, RowId]


def read_size(settings: SearchSinkSettings) -> RequestSize:
    """To be kept from delivery to delivery."""
    return RequestSize(MGET_DOCUMENTS, timeout_s=settings.timeout_s)


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """``fields`` are those that were asked for, as far as it has them."""

    version: int
    fields: Fields


def touched_documents(patch: Patch) -> list[DocumentId]:
    return [(patch.target, each) for each in (patch.id, patch.source) if each is not None]


class PatchDelivery:
    """Blocking; raises TransientError and TerminalError. Requests for documents are of ``size``; ``mgets`` counts them."""

    def __init__(self, connection: ServerConnection, delivery: BulkDelivery, size: RequestSize) -> None:
        self._connection = connection
        self._delivery = delivery
        self._size = size
        self.mgets = 0

    def deliver(self, patches: Sequence[Patch]) -> list[Rejection]:
        """Of one partition, in whose order those of the next ones follow. Returns those that cannot be applied."""
        sources = {(patch.target, patch.source) for patch in patches if patch.source is not None}
        moved = [patch for patch in patches if patch.source is not None or (patch.target, patch.id) in sources]
        staying = [patch for patch in patches if patch.source is None and (patch.target, patch.id) not in sources]
        rejections = self._deliver(moved) if moved else []
        for start in range(0, len(staying), MGET_DOCUMENTS):
            rejections += self._deliver(staying[start : start + MGET_DOCUMENTS])
        return rejections

    def _deliver(self, patches: Sequence[Patch]) -> list[Rejection]:
        """All are read before one is stored: it may be in the place of what another one comes from."""
        found = self._read(patches)
        stored: list[Operation] = []
        unknown: list[Patch] = []
        for patch in patches:
            document, is_settled = _patched(patch, found)
            if document is not None:
                stored.append(Operation(patch.target, patch.id, *patch.at, document))
            elif not is_settled:
                unknown.append(patch)
        refused_before = len(self._delivery.tally.refused)
        self._delivery.deliver(stored)
        refused = self._delivery.tally.refused[refused_before:]
        lost = self._lost(unknown)
        left_out = {(patch.target, patch.id) for patch in lost} | {(each.operation.target, each.operation.id) for each in refused}
        self._delete_sources(patches, left_out)
        blamed = {(patch.target, patch.id): patch.blamed for patch in patches}
        return [_rejection(each, blamed) for each in refused] + [_unknown_value(patch) for patch in lost]

    def _delete_sources(self, patches: Sequence[Patch], left_out: set[DocumentId]) -> None:
        there = {(patch.target, patch.id) for patch in patches}
        self._delivery.deliver(
            [
                Operation(patch.target, patch.source, *patch.at, None)
                for patch in patches
                if patch.source is not None
                and (patch.target, patch.source) not in there
                and (patch.target, patch.id) not in left_out
            ]
        )

    def _lost(self, unknown: Sequence[Patch]) -> list[Patch]:
        """Those whose document was never there. One that was deleted later is remembered: deleting it with the change's version
        is refused then."""
        missing = self._delivery.tally.missing
        missing.clear()
        self._delivery.deliver([Operation(patch.target, patch.id, *patch.at, None) for patch in unknown])
        gone = {(operation.target, operation.id) for operation in missing}
        missing.clear()
        return [patch for patch in unknown if (patch.target, patch.id) in gone]

    def _read(self, patches: Sequence[Patch]) -> dict[DocumentId, FoundDocument]:
        asked = [(document, patch.missing) for patch in patches for document in touched_documents(patch)]
        found: dict[DocumentId, FoundDocument] = {}
        while asked:
            some, asked = asked[: self._size.items], asked[self._size.items :]
            found |= self._read_some(some)
        return found

    def _read_some(self, asked: Sequence[tuple[DocumentId, tuple[str, ...]]]) -> dict[DocumentId, FoundDocument]:
        """What was too much to be read at once is asked for in halves when the batch comes again."""
        self.mgets += 1
        began_at = time.monotonic()
        try:
            found = self._asked(asked)
        except OverloadError:
            self._size.note_refusal(len(asked))
            raise
        self._size.note_answer(time.monotonic() - began_at, len(asked))
        return found

    def _asked(self, asked: Sequence[tuple[DocumentId, tuple[str, ...]]]) -> dict[DocumentId, FoundDocument]:
        docs = [{"_index": target, "_id": orjson.loads(row_id), "_source": list(names)} for (target, row_id), names in asked]
        status, answer = self._connection.send("POST", "/_mget", orjson.dumps({"docs": docs}), JSON, is_bulky=True)
        if status != 200:
            raise_refused(status, answer, "POST /_mget")
        try:
            said: list[dict[str, Any]] = read_fields(answer)["docs"]
            pairs = zip(asked, said, strict=True)
            return {document: _found(each) for (document, _), each in pairs if each.get("found")}
        except (ValueError, KeyError, TypeError) as error:
            raise TransientError(
                f"the search server's answer to a request for documents cannot be read ({type(error).__name__})",
                "it is asked again",
                Cause.TARGET,
            ) from None


def _found(said: dict[str, Any]) -> FoundDocument:
    return FoundDocument(said["_version"], said.get("_source", {}))


def _patched(patch: Patch, found: dict[DocumentId, FoundDocument]) -> tuple[bytes | None, bool]:
    """The document to store, if there is one; and, without one, whether nothing is left to do."""
    there = found.get((patch.target, patch.id))
    if patch.source is None:
        if there is None:
            return None, False
        if there.version > patch.at.version:
            return None, True
        return _completed(patch, there), True
    if there is not None and there.version >= patch.at.version:
        return None, True
    before = found.get((patch.target, patch.source))
    if before is None or before.version >= patch.at.version:
        return None, False
    return _completed(patch, before), True


def _completed(patch: Patch, there: FoundDocument) -> bytes:
    return document_of({name: there.fields[name] for name in patch.missing if name in there.fields} | patch.known)


def _rejection(refused: Refused, blamed: Mapping[DocumentId, At]) -> Rejection:
    operation, answer = refused
    reason = f"the search server refuses the document ({answer.error or f'status {answer.status}'})"
    return Rejection(_position(blamed[operation.target, operation.id]), reason)


def _unknown_value(patch: Patch) -> Rejection:
    names = ", ".join(f"'{name}'" for name in patch.missing)
    reason = f"the document is not there, and the change does not hold the value of {names}, which it left as it was"
    return Rejection(_position(patch.blamed), reason)


def _position(at: At) -> Position:
    return Position(LSN(at.version), at.ordinal)
