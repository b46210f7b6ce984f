"""Output of ``pgsluice messages`` and ``pgsluice trace``."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import orjson
from nats.aio.client import Client

from pgsluice.console.columns import format_bytes
from pgsluice.console.inspect.messages import InspectedMessage, MessagesPage, StreamPlace, read_messages
from pgsluice.console.inspect.row_trace import RowKey, Trace, TracedChange, trace_row
from pgsluice.console.inspect.rules_trial import RuledChanges, try_changes
from pgsluice.rules.transformation_files import load_transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.config.inspect_settings import TraceSettings
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import TablePattern

NOT_FOUND = 1
"""The exit code when the stream holds no change of the row."""

_MOST_DIGITS = 19  # of a sequence, which NATS counts in 64 bits

T = TypeVar("T")


def show_messages(settings: GroupSettings, start: str, table: str, limit: int, *, as_json: bool) -> None:
    """Shows messages through the stream until ``limit`` changes were shown. Raises UsageError for an invalid place or
    pattern."""
    place, pattern = parse_place(start), parse_pattern(table) if table else None
    names = GroupNames(settings.group)

    async def show(client: Client) -> None:
        following, left = place, limit
        while left > 0:
            page = await read_messages(client, names, following, pattern, left)
            for message in page.messages:
                sys.stdout.writelines(_json_line(message) if as_json else _message_lines(message))
            left -= sum(len(message.changes) for message in page.messages)
            if page.next_sequence is None:
                return
            following = StreamPlace(page.next_sequence)

    _at_broker(settings, show)


def show_trace(settings: TraceSettings, table: str, key: Sequence[str], most_messages: int, *, as_json: bool) -> int:
    """Shows a row's trace; returns the exit code."""
    row, names = RowKey(parse_pattern(table), parse_key(key)), GroupNames(settings.group)
    transformation = load_transformation(settings.rules_file, settings.routing_file)

    async def look(client: Client) -> Trace:
        tables = await load_tables(StateBucket(client, names))
        knowing = transformation.knowing(tables or ())

        async def try_rules(messages: Sequence[MessageChanges]) -> RuledChanges:
            return await asyncio.to_thread(try_changes, knowing, messages)  # a pattern may take its time

        return await trace_row(client, names, row, try_rules, most_messages)

    trace = _at_broker(GroupSettings(settings.group, settings.log, settings.nats), look)
    sys.stdout.writelines(_json_line(trace) if as_json else (f"{line}\n" for line in format_trace(trace)))
    return 0 if trace.changes else NOT_FOUND


def parse_place(text: str) -> StreamPlace:
    """Parses a sequence, a time or a position. Raises UsageError."""
    if not text:
        return StreamPlace()
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return StreamPlace(sequence=int(text))
    with contextlib.suppress(ValueError):
        return StreamPlace(position=Position.parse(text))
    try:
        return StreamPlace(time=datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):  # the latter where UTC has no such year
        raise UsageError(
            f"{text!r} is no sequence, no time and no position",
            "write it like 4711, 2026-01-31T09:15:00+00:00 or 16/B374D848:3",
        ) from None


def parse_pattern(text: str) -> TablePattern:
    """Raises UsageError."""
    try:
        return TablePattern.parse(text)
    except ValueError as error:
        raise UsageError(f"{text!r} {error}", "write it like orders or sales.orders") from None


def parse_key(pairs: Sequence[str]) -> dict[str, str]:
    """Raises UsageError; shows no value."""
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if not all("=" in pair for pair in pairs) or "" in found:
        raise UsageError("the row is not named by COLUMN=VALUE", "write its key like id=7")
    return found


def _json_line(content: InspectedMessage | MessagesPage | Trace) -> Iterator[str]:
    yield orjson.dumps(content).decode() + "\n"


def _message_lines(message: InspectedMessage) -> Iterator[str]:
    chunks = f", {message.chunks} chunks" if message.chunks > 1 else ""
    packed = ", compressed" if message.compressed else ""
    yield f"-- {message.sequence} at {message.stored_at}, {format_bytes(message.stored_bytes)}{chunks}{packed}, "
    yield f"{message.first} to {message.last}\n"
    for change in message.changes:
        yield orjson.dumps(change).decode() + "\n"
    if message.left_out:
        yield f"-- and {message.left_out} changes more\n"


def format_trace(trace: Trace) -> Iterator[str]:
    """Yields lines for readers."""
    if trace.more:
        yield f"earlier changes than the newest {len(trace.changes)} are not shown"
    for change in trace.changes:
        yield from _change_lines(change)
    searched = f"messages {trace.searched_from} to {trace.searched_to}"
    reach = "all that the stream holds" if trace.is_whole else "the stream holds earlier ones (--messages)"
    yield f"{len(trace.changes)} changes in {searched}, {reach}"
    if trace.copied:
        since = f"; its copy contains rows that were committed before {trace.copy_lsn}" if trace.copy_lsn else ""
        yield f"copy of {trace.table}: {trace.copied}{since}"


def _change_lines(change: TracedChange) -> Iterator[str]:
    yield f"{change.position} {change.operation}, transaction {change.xid} committed {change.committed_at}"
    yield f"  published {change.published_at}, message {change.sequence}"
    for each in change.workers:
        detail = f": {each.detail}" if each.detail else ""
        yield f"  worker {each.worker}: {each.outcome.value}{detail}"
    yield f"  {orjson.dumps(change.change).decode()}"


def _at_broker(settings: GroupSettings, work: Callable[[Client], Awaitable[T]]) -> T:
    async def answer() -> T:
        async with connected(settings.nats, f"pgsluice inspect {settings.group}") as client:
            return await work(client)

    return asyncio.run(answer())
