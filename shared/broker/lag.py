"""The lag of a reader, relative to the end of a group's stream of changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.shared.broker.ledger import CopyMode, CopyState, SnapshotRecord
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport
from pgsluice.shared.wire.message import MessageHeaders


@dataclass(frozen=True, slots=True)
class Lag:
    """``bytes`` counts bodies, before compression, that were not read; the first of them was stored ``seconds`` ago (0:
    none). A value is None if unknown, because the reader is bound to another stream or its place in the stream is gone."""

    messages: int | None = None
    bytes: int | None = None
    seconds: float | None = None


UNKNOWN_LAG = Lag()
NO_LAG = Lag(0, 0, 0.0)


async def measure_lag(stream: ChangeStream, state: StreamState, sequence: int) -> Lag:
    """Measures the lag of ``sequence`` behind the end of ``stream``, whose state is ``state``."""
    behind = state.last_sequence - sequence
    if behind <= 0:
        return NO_LAG
    last, first_behind = await stream.message(state.last_sequence), await stream.message(sequence + 1)
    if last is None or first_behind is None:
        return Lag(behind)
    total = MessageHeaders.decode(last.headers).total_bytes
    before = MessageHeaders.decode(first_behind.headers).bytes_before(first_behind.data)
    return Lag(behind, total - before, max(0.0, (datetime.now(UTC) - first_behind.stored_at).total_seconds()))


def copy_lag(snapshot: SnapshotRecord | None, report: WorkerReport) -> Lag | None:
    """Returns the lag in a copy without changes, in messages and since when there is something to apply; None for a
    group that streams."""
    if snapshot is None or snapshot.mode is not CopyMode.COPY:
        return None
    if snapshot.state is CopyState.FINISHED and report.snapshot_sequence >= snapshot.last_sequence:
        return NO_LAG
    since = snapshot.finished_at or snapshot.started_at
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()) if since else None
    return Lag(max(1, snapshot.last_sequence - report.snapshot_sequence), None, seconds)
