"""Requests of many operations for the server's bulk API, and the answers to each.

An operation stores or deletes one document, with a version that the server compares with its own
(``version_type=external_gte``): the same one again is taken and changes nothing, an older one is refused. So requests
can come twice, and in any order.

A server's answer to one operation:

| answer | outcome | |---|---| | 2xx; 404 for a delete | DONE | | 409: its document is newer | STALE, which is as good |
| 429, 5xx, ``es_rejected_execution_exception``, ``circuit_breaking_exception`` | THROTTLED: it alone is sent again | |
400 ``index_closed_exception`` | THROTTLED as well: an operator opens it again | | 403 ``cluster_block_exception`` |
BLOCKED: the same, when an operator has made room | | 404 of the index, 400 of an alias that two indexes have, 401, 403
| WRONG: the error concerns all | | any other 400, 413 | REFUSED: this document will never be taken |
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from pgsluice.shared.errors import Cause, TransientError
from pgsluice.worker.sinks.search.mapping import DEEPEST
from pgsluice.worker.sinks.search.server_connection import BLOCK, CLOSED, NDJSON, ServerConnection, denied_action, error_type

PATH = "/_bulk?require_alias=true&filter_path=errors,items.*.status,items.*.error"
WAITING_SHARE = 1 / 2
"""Share of a request's time that the server may wait for an unassigned shard. Then it answers so for each document, and
does not write it after the request timed out."""

MOST_OPERATIONS = 5000
"""Limit of one request: more do not make it faster, but the answer later."""


class Operation(NamedTuple):
    """``target`` is a generation's write alias. ``id`` is a JSON string, quotes included. ``document`` is a JSON object in one
    line that ends in a line feed; None deletes. ``version`` is a commit LSN; with ``ordinal`` it is the position of the change
    that it comes from."""

    target: str
    id: bytes
    version: int
    ordinal: int
    document: bytes | None


class BulkOutcome(enum.Enum):
    DONE = "done"
    STALE = "stale"
    THROTTLED = "throttled"
    BLOCKED = "blocked"
    REFUSED = "refused"
    WRONG = "wrong"


class ItemAnswer(NamedTuple):
    """The result of an operation. ``error`` is the type of the server's error, ``field`` the one that it is about, if
    named, ``action`` the denied one; none holds a value."""

    outcome: BulkOutcome
    status: int = 200
    error: str = ""
    field: str = ""
    action: str = ""

    @property
    def is_overload(self) -> bool:
        """True if the request held more than the server could take at that moment."""
        return self.status == _TOO_MANY_REQUESTS or self.error in _REJECTED

    def refusal(self, about: str = "") -> str:
        """Returns why a document is set aside; ``about`` adds details."""
        if self == TOO_DEEP:
            return f"the document is nested more than {DEEPEST} levels deep, which a search server may not survive"
        return f"the search server refuses the document ({self.error or f'status {self.status}'}{about})"


DONE = ItemAnswer(BulkOutcome.DONE)
TOO_DEEP = ItemAnswer(BulkOutcome.REFUSED, 0, "nested too deep")
"""The answer for a document that is not sent."""

_CONFLICT, _NOT_FOUND, _TOO_LARGE, _TOO_MANY_REQUESTS = 409, 404, 413, 429
_REJECTED = frozenset({"es_rejected_execution_exception", "rejected_execution_exception", "circuit_breaking_exception"})
_NOT_ONE_INDEX = "no write index is defined for alias"
"""Part of the reason of an ``illegal_argument_exception``, which otherwise is about a document."""
_TRY_AGAIN = frozenset({_TOO_MANY_REQUESTS, 408})
_FIELD_MARKS = ("field [", "introduction of [", "mapper [", 'term in field="', "field '")
"""Texts before a field's name in the server's reasons; the name ends with the character that closes the last one."""
_CLOSERS = {"[": "]", '"': '"', "'": "'"}


def encode_bulk(operations: Iterable[Operation]) -> bytes:
    """Returns the body of one request."""
    lines = []
    for target, id_text, version, _, document in operations:
        place = b'{"_index":"%b","_id":%b,"version":%d,"version_type":"external_gte"}}\n' % (target.encode(), id_text, version)
        lines.append(b'{"delete":' + place if document is None else b'{"index":' + place + document)
    return b"".join(lines)


def operation_bytes(operation: Operation) -> int:
    """Estimates what it adds to a request."""
    return 100 + len(operation.target) + len(operation.id) + len(operation.document or b"")


class SendHalves(Exception):  # noqa: N818  nothing failed for good
    """A request was refused as a whole, because of its size or for what one operation holds."""

    def __init__(self, *, is_too_large: bool) -> None:
        super().__init__(is_too_large)
        self.is_too_large = is_too_large


def send_bulk(connection: ServerConnection, operations: Sequence[Operation], *, wait_visible: bool = False) -> list[ItemAnswer]:
    """Sends operations; returns the answers to each. Raises SendHalves, of one operation never; TransientError when the
    server cannot take it now, OverloadError among them when there may be too much in it; TerminalError when an error
    concerns all of it."""
    waiting_ms = round(connection.timeout_s * 1000 * WAITING_SHARE)
    path = f"{PATH}&timeout={waiting_ms}ms" + ("&refresh=wait_for" if wait_visible else "")
    status, answer = connection.send("POST", path, encode_bulk(operations), NDJSON, is_bulky=True)
    if 200 <= status < 300:
        return read_answers(answer, operations)
    if status not in (400, _TOO_LARGE):
        connection.refuse(status, answer, "POST /_bulk")
    if len(operations) == 1:
        return [ItemAnswer(BulkOutcome.REFUSED, status, error_type(answer))]
    raise SendHalves(is_too_large=status == _TOO_LARGE)


def read_answers(answer: bytes, operations: Sequence[Operation]) -> list[ItemAnswer]:
    """Returns the answers in the sequence of the operations. Raises TransientError for an answer that is malformed: it
    may have been cut."""
    try:
        content = orjson.loads(answer)
        items = content["items"]
        if len(items) != len(operations):
            raise ValueError("another number of items")
        if not content["errors"] and all(operation.document is not None for operation in operations):
            return [DONE] * len(operations)
        return [_item_answer(next(iter(item.values())), each) for item, each in zip(items, operations, strict=True)]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, StopIteration, AttributeError) as error:
        raise TransientError(
            f"the search server's answer to a bulk request cannot be read ({type(error).__name__})",
            "it is sent again",
            Cause.TARGET,
        ) from None


def _item_answer(item: dict[str, Any], operation: Operation) -> ItemAnswer:
    status = int(item["status"])
    if 200 <= status < 300:
        return DONE
    error = item.get("error") or {}
    kind = error.get("type", "")
    if operation.document is None and status == _NOT_FOUND and not kind:
        return ItemAnswer(BulkOutcome.DONE, status)
    reason = error.get("reason") or ""
    outcome = BulkOutcome.WRONG if _NOT_ONE_INDEX in reason else _outcome(status, kind)
    return ItemAnswer(outcome, status, kind, field_in(reason), denied_action(reason) if outcome is BulkOutcome.WRONG else "")


def _outcome(status: int, kind: str) -> BulkOutcome:
    if status == _CONFLICT:
        return BulkOutcome.STALE
    if kind == BLOCK:
        return BulkOutcome.BLOCKED
    if status in _TRY_AGAIN or status >= 500 or kind in _REJECTED or kind == CLOSED:
        return BulkOutcome.THROTTLED
    return BulkOutcome.REFUSED if status in (400, _TOO_LARGE) else BulkOutcome.WRONG


def field_in(reason: str) -> str:
    """Returns the field that a reason of the server is about; "" when it names none. Nothing else of the reason is
    shown: it may quote the value."""
    found = [(reason.find(mark), mark) for mark in _FIELD_MARKS if mark in reason]
    if not found:
        return ""
    at, mark = min(found)
    name = reason[at + len(mark) :]
    end = name.find(_CLOSERS[mark[-1]])
    return name[:end] if 0 < end <= 512 else ""
