"""The change stream read from outside: bodies as they were published, decoded, without a position and without a consumer.

Retention may remove messages during the reading: a gap is skipped and not an error, as it would be for a worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from pgsluice.shared.broker.streams import ChangeStream, StoredMessage
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.position import Position

_FETCH_MESSAGES = 256
_FETCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredBody:
    """One body, decoded. ``sequence`` is its last chunk's, ``stored_bytes`` counts all of them."""

    first_sequence: int
    sequence: int
    stored_at: datetime
    stored_bytes: int
    headers: MessageHeaders
    changes: MessageChanges


async def read_bodies(stream: ChangeStream, first_sequence: int, last_sequence: int) -> AsyncIterator[StoredBody]:
    """Yields bodies whose last chunk lies in the range, in order. Raises TransientError when NATS does not answer,
    WireError for malformed bytes."""
    chunks: list[StoredMessage] = []
    following = first_sequence
    while following <= last_sequence:
        messages = await stream.fetch(following, min(_FETCH_MESSAGES, last_sequence - following + 1), _FETCH_BYTES)
        if not messages:
            return
        for message in messages:
            if message.sequence > last_sequence:
                return
            headers = MessageHeaders.decode(message.headers)
            chunks = [message] if headers.chunk.index == 1 else [*chunks, message]
            if headers.chunk.is_last and len(chunks) == headers.chunk.count:
                yield _decoded(chunks, headers)
                chunks = []
        following = messages[-1].sequence + 1


async def sequence_at(stream: ChangeStream, place: datetime | Position, first_sequence: int, last_sequence: int) -> int:
    """Returns the first message of the range that was stored at a time or later, or that holds a change at a position
    or later; one more than the last when all are older."""
    low, high = first_sequence, last_sequence + 1
    while low < high:
        middle = (low + high) // 2
        message = await stream.message(middle)
        if message is None or _is_before(message, place):  # removed ones are older than all existing ones
            low = middle + 1
        else:
            high = middle
    return low


def _is_before(message: StoredMessage, place: datetime | Position) -> bool:
    if isinstance(place, datetime):
        return message.stored_at < place
    return MessageHeaders.decode(message.headers).last < place


def _decoded(chunks: list[StoredMessage], headers: MessageHeaders) -> StoredBody:
    first, last = chunks[0], chunks[-1]
    ordinal = MessageHeaders.decode(first.headers).first.ordinal
    body = headers.body([chunk.data for chunk in chunks])
    changes = decode_changes(body, first_sequence=first.sequence, sequence=last.sequence, first_ordinal=ordinal)
    size = sum(len(chunk.data) for chunk in chunks)
    return StoredBody(first.sequence, last.sequence, last.stored_at, size, headers, changes)
