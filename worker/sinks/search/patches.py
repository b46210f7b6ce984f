"""Patches documents whose rows came without values that an update left unchanged: reads, completes and stores them.

PostgreSQL does not send a large value that did not change, and a bulk update accepts no external version. So the driver
reads these documents, when every task of the batch is done, and stores them whole with the version of the change. That
is safe: one worker writes an index at a time, newer changes win by their version, and the documents of this batch's
tasks are stored. A missing document was deleted by a later change, which the server remembers, or the value is unknown:
that change is set aside.

The worker may die anywhere in between, and its successor may cut the changes into other batches and partitions. So a
value is searched under every key that its row had, and a key that its row left goes when the row is stored: of several,
the one that was left last goes first. The rest can then be done in any sequence, and again.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import orjson

from pgsluice.shared.errors import Cause, MissingPrivilegeError, OverloadError, TerminalError, TransientError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.search.bulk import ItemAnswer, Operation
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery
from pgsluice.worker.sinks.search.document import Fields, RowId, document_of, read_fields, with_whole_values
from pgsluice.worker.sinks.search.document_fold import At, FormerId, Patch, Vacated
from pgsluice.worker.sinks.search.mapping import WHOLE_FIELD
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.request_size import RequestSize
from pgsluice.worker.sinks.search.server_connection import CLOSED, JSON, ServerConnection, denied_action

MGET_DOCUMENTS = 100
"""The number of documents that are read at once: their values are the large ones."""

_FORBIDDEN = "security_exception"
_LASTING = frozenset({"index_not_found_exception", "illegal_argument_exception"})
"""Errors that are not transient. The second one is of an alias which two indexes have."""

DocumentId = tuple[str, RowId]


def read_size(settings: SearchSinkSettings) -> RequestSize:
    """Returns the read size, to be kept from delivery to delivery."""
    return RequestSize(MGET_DOCUMENTS, timeout_s=settings.timeout_s)


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """``fields`` are the requested ones, as far as it has them."""

    version: int
    fields: Fields


def touched_documents(patch: Patch) -> list[DocumentId]:
    return [(patch.target, patch.id), *((patch.target, former.id) for former in patch.former)]


class PatchDelivery:
    """Blocking; raises TransientError and TerminalError. Requests for documents are of ``size``; ``mgets`` counts them."""

    def __init__(self, connection: ServerConnection, delivery: BulkDelivery, size: RequestSize) -> None:
        self._connection = connection
        self._delivery = delivery
        self._size = size
        self.mgets = 0

    def deliver(self, patches: Sequence[Patch], vacated: Sequence[Vacated]) -> list[Rejection]:
        """Delivers the patches of one partition; partitions are delivered in sequence. Returns the ones that cannot be
        applied."""
        left = {(each.target, former.id) for each in patches for former in each.former}
        moved = [each for each in patches if each.former or not each.missing or (each.target, each.id) in left]
        staying = [each for each in patches if each.former == () and each.missing and (each.target, each.id) not in left]
        refused = self._deliver(moved) if moved else []
        for start in range(0, len(staying), MGET_DOCUMENTS):
            refused += self._deliver(staying[start : start + MGET_DOCUMENTS])
        kept = {(each.target, former.id) for each, _ in refused for former in each.former}
        self._delete([each for each in vacated if (each.target, each.id) not in kept])
        return [rejection for _, rejection in refused]

    def _deliver(self, patches: Sequence[Patch]) -> list[tuple[Patch, Rejection]]:
        """Reads all before storing one: it may be in the place of another one's source. Deletes come last."""
        found = self._read([patch for patch in patches if patch.missing])
        left = {(patch.target, former.id) for patch in patches for former in patch.former}
        stored: tuple[list[Operation], list[Operation]] = [], []
        unknown: list[Patch] = []
        incomplete: list[Patch] = []
        for patch in patches:
            match _patched(patch, found):
                case bytes(document):
                    stored[(patch.target, patch.id) in left].append(Operation(patch.target, patch.id, *patch.at, document))
                case Unpatched.SETTLED:
                    pass
                case Unpatched.NO_DOCUMENT:
                    unknown.append(patch)
                case Unpatched.NO_VALUE:
                    incomplete.append(patch)
                case unreachable:
                    assert_never(unreachable)
        refused_before = len(self._delivery.tally.refused)
        for operations in stored:
            self._delivery.deliver(operations)
        refused = self._delivery.tally.refused[refused_before:]
        by_id = {(patch.target, patch.id): patch for patch in patches}
        answered = [(by_id[operation.target, operation.id], answer) for operation, answer in refused]
        return [
            *((patch, _rejection(patch, answer)) for patch, answer in answered),
            *((patch, _unknown_value(patch, "the document is not there")) for patch in self._lost(unknown)),
            *((patch, _unknown_value(patch, "the document does not have it")) for patch in incomplete),
        ]

    def _delete(self, vacated: Sequence[Vacated]) -> None:
        latest_first = sorted(vacated, key=lambda each: each.at, reverse=True)
        self._delivery.deliver([Operation(each.target, each.id, *each.at, None) for each in latest_first], in_turn=True)

    def _lost(self, unknown: Sequence[Patch]) -> list[Patch]:
        """Returns the patches whose values are unknown. A document that was deleted later is remembered: deleting it
        with the change's version is refused then."""
        stale = self._delivery.tally.stale_deletes
        stale.clear()
        self._delivery.deliver([Operation(patch.target, patch.id, *patch.at, None) for patch in unknown])
        return [patch for patch in unknown if (patch.target, patch.id) not in stale]

    def _read(self, patches: Sequence[Patch]) -> dict[DocumentId, FoundDocument]:
        names: dict[DocumentId, dict[str, None]] = {}
        for patch in patches:
            for document in touched_documents(patch):
                names.setdefault(document, {}).update(dict.fromkeys(patch.missing))
        asked = [(document, tuple(fields)) for document, fields in names.items()]
        found: dict[DocumentId, FoundDocument] = {}
        while asked:
            some, asked = asked[: self._size.items], asked[self._size.items :]
            found |= self._read_some(some)
        return found

    def _read_some(self, asked: Sequence[tuple[DocumentId, tuple[str, ...]]]) -> dict[DocumentId, FoundDocument]:
        """Reads some documents; after too large a request halves are read when the batch comes again."""
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
        docs = [
            {"_index": target, "_id": orjson.loads(row_id), "_source": [*names, WHOLE_FIELD]} for (target, row_id), names in asked
        ]
        status, answer = self._connection.send("POST", "/_mget", orjson.dumps({"docs": docs}), JSON, is_bulky=True)
        if status != 200:
            self._connection.refuse(status, answer, "POST /_mget")
        try:
            said: list[dict[str, Any]] = read_fields(answer)["docs"]
            for each in said:
                _check_given(each, self._connection.rights_remedy)
            pairs = zip(asked, said, strict=True)
            return {document: _found(each) for (document, _), each in pairs if each.get("found")}
        except (ValueError, KeyError, TypeError) as error:
            raise TransientError(
                f"the search server's answer to a request for documents cannot be read ({type(error).__name__})",
                "it is asked again",
                Cause.TARGET,
            ) from None


def _check_given(said: dict[str, Any], rights_remedy: str) -> None:
    """Raises for a document whose existence the server cannot determine: it must not be considered missing."""
    error = said.get("error")
    if not error:
        return
    kind, index = error["type"], str(said["_index"]).removesuffix("-write")
    fact = f"the search server does not give documents of index '{index}' ({kind})"
    if kind == _FORBIDDEN:
        action = denied_action(str(error.get("reason", "")))
        raise MissingPrivilegeError(f"{fact}: it does not permit {action}" if action else fact, rights_remedy)
    if kind in _LASTING:
        raise TerminalError(fact, "check that the index exists, and that no other one has its aliases")
    raise TransientError(fact, "open it again" if kind == CLOSED else "they are asked for again", Cause.TARGET)


def _found(said: dict[str, Any]) -> FoundDocument:
    return FoundDocument(said["_version"], with_whole_values(said.get("_source", {})))


class Unpatched(enum.Enum):
    """Why there is no document to store."""

    SETTLED = "nothing is left to do"
    NO_DOCUMENT = "there is no document"
    NO_VALUE = "the document has not all that the change left as it was"


def _patched(patch: Patch, found: dict[DocumentId, FoundDocument]) -> bytes | Unpatched:
    """Returns the document to store, or the reason against it."""
    if not patch.missing:
        return document_of(patch.known)
    there = found.get((patch.target, patch.id))
    # A row under its old key may have this version by changes of the same transaction that were sent before.
    done_from = patch.at.version if patch.former else patch.at.version + 1
    if there is not None and there.version >= done_from:
        return Unpatched.SETTLED
    places = [*patch.former, FormerId(patch.id, patch.since, done_from)]
    rows = [
        document
        for place in places
        if (document := found.get((patch.target, place.id))) is not None and place.since <= document.version < place.until
    ]
    if not rows:
        return Unpatched.NO_DOCUMENT
    there = max(rows, key=lambda each: each.version)
    if any(name not in there.fields for name in patch.missing):
        return Unpatched.NO_VALUE
    return document_of({name: there.fields[name] for name in patch.missing} | patch.known)


def _rejection(patch: Patch, answer: ItemAnswer) -> Rejection:
    return Rejection(_position(patch.blamed), answer.refusal())


def _unknown_value(patch: Patch, why: str) -> Rejection:
    names = ", ".join(f"'{name}'" for name in patch.missing)
    reason = f"{why}, and the change does not hold the value of {names}, which it left as it was"
    return Rejection(_position(patch.blamed), reason)


def _position(at: At) -> Position:
    return Position(LSN(at.version), at.ordinal)
