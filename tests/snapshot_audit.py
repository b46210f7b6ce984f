"""Reading a group's snapshot stream whole: is each range there once, in order and to its end, and what rows does it hold."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import SnapshotStream, StoredMessage
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, split_snapshot_body
from pgsluice.shared.wire.table import Table

FETCH_BYTES = 8 << 20


@dataclass
class CopiedRows:
    """What one snapshot copied of one table. ``rows`` are lines of COPY text without their ends, with how often each came.
    ``last_sequence`` is that of the last of its messages."""

    attempt: int
    ranges: set[int] = field(default_factory=set)
    ended_ranges: set[int] = field(default_factory=set)
    rows: Counter[bytes] = field(default_factory=Counter)
    table: Table | None = None
    last_sequence: int = 0


@dataclass
class SnapshotAudit:
    """``copies`` is by snapshot and oid."""

    copies: dict[tuple[str, int], CopiedRows]
    problems: list[str]
    messages: int

    def copy_of(self, snapshot: str, oid: int) -> CopiedRows:
        return self.copies[snapshot, oid]


def audit_snapshot(nats: NatsSettings, group: str) -> SnapshotAudit:
    """Everything the stream holds. A range that is not complete is a problem only to its reader: see ``ended_ranges``."""
    return asyncio.run(_audit(nats, group))


async def _audit(nats: NatsSettings, group: str) -> SnapshotAudit:
    async with connected(nats, "audit") as client:
        stream = SnapshotStream(client, GroupNames(group))
        state = await stream.state()
        assert state is not None
        audit = SnapshotAudit({}, [], 0)
        numbers: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        chunks: defaultdict[tuple[str, int, int], list[bytes]] = defaultdict(list)
        sequence = state.first_sequence
        while sequence <= state.last_sequence:
            for message in await stream.fetch(sequence, 1000, FETCH_BYTES):
                _add(audit, message, numbers, chunks)
                sequence = message.sequence + 1
        return audit


def _add(
    audit: SnapshotAudit,
    message: StoredMessage,
    numbers: dict[tuple[str, int, int], int],
    chunks: dict[tuple[str, int, int], list[bytes]],
) -> None:
    headers = SnapshotHeaders.decode(message.headers)
    audit.messages += 1
    copied = headers.snapshot, headers.oid
    if headers.range_number is None:
        if copied in audit.copies:
            audit.problems.append(f"{copied} begins twice, or after its rows")
        audit.copies[copied] = CopiedRows(headers.attempt, last_sequence=message.sequence)
        return
    rows = audit.copies.get(copied)
    if rows is None:
        audit.problems.append(f"{copied} has rows before its begin message")
        return
    rows.last_sequence = message.sequence
    place = (*copied, headers.range_number)
    if headers.number != numbers[place] + 1 or headers.range_number in rows.ended_ranges:
        audit.problems.append(f"{place}: message {headers.number} comes after {numbers[place]}")
    numbers[place] = headers.number
    rows.ranges.add(headers.range_number)
    chunks[place].append(message.data)
    if headers.chunk.is_last:
        table, text = split_snapshot_body(b"".join(chunks[place]))
        chunks[place] = []
        rows.table = table
        lines = bytes(text).split(b"\n")[:-1]
        rows.rows.update(lines)
        if len(lines) != headers.rows:
            audit.problems.append(f"{place}: message {headers.number} has {len(lines)} rows and says {headers.rows}")
    if headers.is_range_end:
        rows.ended_ranges.add(headers.range_number)
