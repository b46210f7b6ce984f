"""The time that a group can wait: how long its stream has room, and the WAL that the source keeps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pgsluice.console.columns import format_bytes
from pgsluice.replicator.source.slot import find_slot
from pgsluice.replicator.source.source import Source
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.wire.names import GroupNames

SHORTEST_MEASURED_S = 60.0
"""A shorter period is no measure of a rate."""
FOREVER_S = 366 * 86_400.0


def room_s(free_bytes: int, filled_bytes: int, filled_s: float) -> float | None:
    """Seconds until ``free_bytes`` are filled, at the rate at which ``filled_bytes`` came within ``filled_s``. None when that is
    not known."""
    if filled_s < SHORTEST_MEASURED_S:
        return None
    return FOREVER_S if filled_bytes == 0 else min(FOREVER_S, free_bytes * filled_s / filled_bytes)


async def say_room(stream: ChangeStream) -> Iterator[str]:
    """Yields lines about the room. The stream keeps changes that wait for a worker. Ignores removals meanwhile."""
    state = await stream.state()
    if state is None:
        return iter(())
    first = await stream.message(state.first_sequence) if state.messages else None
    free = max(0, state.max_bytes - state.bytes)
    filled_s = 0.0 if first is None else (datetime.now(UTC) - first.stored_at).total_seconds()
    left_s = room_s(free, state.bytes, filled_s)
    room = f"the source frees its WAL meanwhile; the stream has room for {format_bytes(free)} more"
    if left_s is None:
        return iter([f"{room}; how fast it fills is not known yet"])
    if left_s >= FOREVER_S:
        return iter([f"{room}: more than a year as it fills now"])
    until = datetime.now(UTC) + timedelta(seconds=left_s)
    rate = f"at the rate of the last {_span(filled_s)}"
    return iter([f"{room}: about {_span(left_s)}, until {until:%Y-%m-%d %H:%M} UTC, {rate}; then the source retains WAL"])


async def say_wal(source: PostgresSettings | None, names: GroupNames) -> Iterator[str]:
    """Yields lines about WAL, which the source keeps while nothing reads the slot."""
    warning = "the source retains WAL for this group until the replicator continues"
    if source is None:
        return iter([f"{warning}; give --host, --dbname and --user to see how much it may keep"])
    try:
        connection = await Source.connect(source)
        try:
            slot = await find_slot(connection, names)
        finally:
            await connection.close()
    except PgsluiceError as error:
        return iter([f"{warning}; how much it may keep is not known: {error}"])
    if slot is None:
        return iter(["the source has no slot of this group"])
    if slot.safe_wal_bytes is None:
        return iter([f"{warning}, without a limit (max_slot_wal_keep_size): watch its disk"])
    return iter([f"{warning}: {format_bytes(slot.safe_wal_bytes)} more, then the slot is lost (max_slot_wal_keep_size)"])


def _span(seconds: float) -> str:
    """Formats a span in the larger unit alone."""
    for unit, length in (("days", 2 * 86_400), ("hours", 2 * 3600), ("minutes", 120)):
        if seconds >= length:
            return f"{round(seconds / (length / 2))} {unit}"
    return f"{round(seconds)} seconds"
