"""``pgsluice messages``: what the change stream holds, message by message, as JSON lines show changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

import orjson
from nats.aio.client import Client

from pgsluice.console.inspect.stream_bodies import StoredBody, read_bodies, sequence_at
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.errors import UsageError
from pgsluice.shared.rows.changes import DefinitionChange, MessageChanges, Part, TableChanges, Truncation
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import concerned
from pgsluice.shared.wire.table import TablePattern
from pgsluice.worker.sinks.lines.json_lines import encode_lines

MOST_MESSAGES_LOOKED_AT = 20_000
"""Limit of messages read by one request about some table: the answer contains the end then."""


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The place to begin: a sequence, a time or a change's position; without any: the newest messages, as many as the
    limit allows."""

    sequence: int | None = None
    time: datetime | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class TableCount:
    """``table`` is "" for what concerns none."""

    table: str
    changes: int


@dataclass(frozen=True, slots=True)
class InspectedMessage:
    """``changes`` are JSON lines' objects, of the tables that were asked for; ``left_out`` counts those of them beyond the limit.
    ``first`` and ``last`` are the positions of its first and last change."""

    sequence: int
    chunks: int
    stored_at: str
    stored_bytes: int
    compressed: bool
    first: str
    last: str
    tables: tuple[TableCount, ...]
    changes: tuple[object, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class MessagesPage:
    """``next_sequence`` is where to continue; None at the end of the stream. ``first_sequence`` and ``last_sequence``
    are the stream's."""

    messages: tuple[InspectedMessage, ...]
    next_sequence: int | None
    first_sequence: int
    last_sequence: int


async def read_messages(
    client: Client, names: GroupNames, place: StreamPlace, pattern: TablePattern | None, limit: int
) -> MessagesPage:
    """Reads messages from ``place`` on until they hold ``limit`` changes of the tables that ``pattern`` matches. Raises
    UsageError when there is no stream, TransientError."""
    stream = ChangeStream(client, names)
    state = await stream.state()
    if state is None:
        raise UsageError(f"group '{names.group}' has no stream of changes", "start its replicator, or correct the group's name")
    found: list[InspectedMessage] = []
    left, first = limit, await _first_sequence(stream, state, place, pattern, limit)
    end = min(state.last_sequence, first + MOST_MESSAGES_LOOKED_AT - 1)
    following = end + 1
    async for body in read_bodies(stream, first, end):
        message = inspected(body, pattern, left, place.position)
        if message is not None:
            found.append(message)
            left -= len(message.changes)
        if left <= 0:
            following = body.sequence + 1
            break
    is_end = following > state.last_sequence
    return MessagesPage(tuple(found), None if is_end else following, state.first_sequence, state.last_sequence)


async def _first_sequence(
    stream: ChangeStream, state: StreamState, place: StreamPlace, pattern: TablePattern | None, limit: int
) -> int:
    if (at := place.time or place.position) is not None:
        return await sequence_at(stream, at, state.first_sequence, state.last_sequence)
    if place.sequence is not None:
        return max(place.sequence, state.first_sequence)
    return await _newest(stream, state, pattern, limit)


async def _newest(stream: ChangeStream, state: StreamState, pattern: TablePattern | None, limit: int) -> int:
    """Returns where the newest messages begin that have such changes, no more than ``limit`` together, and one message
    at least."""
    first, found = state.last_sequence + 1, 0
    earliest = max(state.first_sequence, state.last_sequence - MOST_MESSAGES_LOOKED_AT + 1)
    end, size = state.last_sequence, 1
    while end >= earliest:
        begin = max(earliest, end - size + 1)
        counts = [
            (body.first_sequence, sum(map(_size, with_tables(body.changes, pattern).parts)))
            async for body in read_bodies(stream, begin, end)
        ]
        for sequence, count in reversed(counts):
            if found and found + count > limit:
                return first
            first, found = (sequence, found + count) if count else (first, found)
        end, size = begin - 1, 2 * size
    return first


def inspected(
    body: StoredBody, pattern: TablePattern | None, most: int, begin: Position | None = None
) -> InspectedMessage | None:
    """Returns None when the message has no change of such a table. Changes before ``begin`` are left out."""
    wanted = with_tables(body.changes, pattern)
    lines = [line for text in encode_lines(wanted) for line in text.splitlines()]
    if begin is not None and body.headers.first < begin:
        lines = [line for line in lines if not _is_before(line, begin)]
    if pattern is not None and not lines:
        return None
    headers = body.headers
    return InspectedMessage(
        sequence=body.sequence,
        chunks=headers.chunk.count,
        stored_at=body.stored_at.isoformat(),
        stored_bytes=body.stored_bytes,
        compressed=headers.size is not None,
        first=str(headers.first),
        last=str(headers.last),
        tables=tuple(TableCount(table, count) for table, count in sorted(_counts(body.changes).items())),
        changes=tuple(map(orjson.Fragment, lines[:most])),
        left_out=max(0, len(lines) - most),
    )


def _is_before(line: bytes, begin: Position) -> bool:
    position = orjson.loads(line).get("position")
    return position is not None and Position.parse(position) < begin


def with_tables(message: MessageChanges, pattern: TablePattern | None) -> MessageChanges:
    """Returns the message with only the changes of such tables."""
    if pattern is None:
        return message
    return replace(message, parts=[part for part in message.parts if any(pattern.matches(*name) for name in _names(part))])


def _names(part: Part) -> Iterator[tuple[str, str]]:
    match part:
        case TableChanges(table=table):
            yield table.schema, table.name
        case Truncation(tables=tables):
            yield from ((table.schema, table.name) for table in tables)
        case DefinitionChange(definition=definition):
            about = concerned(definition.event)
            if about is not None:
                yield about.schema, about.name
        case unreachable:
            assert_never(unreachable)


def _counts(message: MessageChanges) -> Counter[str]:
    counts: Counter[str] = Counter()
    for part in message.parts:
        for schema, name in list(_names(part)) or [("", "")]:
            counts[f"{schema}.{name}" if schema else ""] += _size(part)
    return counts


def _size(part: Part) -> int:
    match part:
        case TableChanges():
            return len(part)
        case Truncation() | DefinitionChange():
            return 1
        case unreachable:
            assert_never(unreachable)
