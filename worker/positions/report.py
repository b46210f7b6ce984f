"""A worker's report about itself, in the state bucket and in its log, at most once a second.

It is under ``worker.<name>``, its newest batches under ``batches.<name>``, since when tables are ready under
``ready.<name>``. ``pgsluice status`` shows it, and the replicator removes no message that it does not name as applied.
It may be older than the sink's own position, never newer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pgsluice.rules.transformation import UNTRANSFORMED, Transformation
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import LedgerContent
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.broker.worker_records import (
    MOST_BATCHES,
    BatchesRecord,
    BatchRecord,
    ReadyRecord,
    UnchangedRows,
    WorkerReport,
    batches_key,
    ready_key,
    worker_key,
)
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError
from pgsluice.shared.units.applied_places import NOTHING_PUBLISHED
from pgsluice.shared.wire.position import LSN, POSTGRES_EPOCH, format_lsn
from pgsluice.worker.event_loop import Ended, WatchedTask
from pgsluice.worker.positions.missed_changes import report_missed
from pgsluice.worker.positions.ready_tables import ReadyTables
from pgsluice.worker.sinks.sink import Applied, CatchUp, MissedChanges

REPORT_INTERVAL_S = 1.0
BATCH_LOG_INTERVAL_S = 10.0
LATENCY_WINDOW_S = 60.0
MOST_LATENCIES = 1000

log = telemetry.logger(__name__)


_State = tuple[Applied, int, Sequence[MissedChanges], frozenset[int] | None, int | None, ReadyRecord]
"""Everything that is reported; when it changes, there is something to report."""


class ProgressReport:
    """Used on one event loop, except for the methods ``note…``, which any thread may call."""

    def __init__(
        self, bucket: StateBucket, worker: str, applied: Applied, transformation: Transformation = UNTRANSFORMED
    ) -> None:
        """``transformation`` determines which changes may correctly meet no row."""
        self._bucket = bucket
        self._key = worker_key(worker)
        self._batches_key = batches_key(worker)
        self._ready_key = ready_key(worker)
        self._applied = applied
        self._batches = 0
        self._changes = 0
        self._newest: deque[BatchRecord] = deque(maxlen=MOST_BATCHES)
        self._latencies = RecentLatencies()
        self._missed: Sequence[MissedChanges] = ()
        self._paused_tables: frozenset[int] | None = None
        self._held: int | None = None
        self._copied_at = ""
        self._unchanged: UnchangedRows | None = None
        self._transformation = transformation
        self._tables = ReadyTables(applied)
        self._ready = self._told_ready = ReadyRecord()
        self._started_at = _now()
        self._reported: _State | None = None
        self._task: WatchedTask | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._has_news = False

    def go_on(self, applied: Applied, transformation: Transformation) -> None:
        """Continues after a pause, from the sink's current position."""
        if applied.snapshot_sequence != self._applied.snapshot_sequence:
            self._copied_at = ""
        self._applied, self._transformation = applied, transformation
        self._tables.go_on(applied)
        self._tell()

    def note(self, applied: Applied, batch: BatchRecord) -> None:
        if applied.committed_at != self._applied.committed_at:
            self._latencies.note(applied.committed_at)
        if applied.snapshot_sequence != self._applied.snapshot_sequence:
            self._copied_at = _now()
        self._applied = applied
        if self._tables.move(applied):
            self._ready = self._tables.record
        self._batches += 1
        self._changes += batch.changes
        self._newest.append(batch)
        self._tell()

    @property
    def waits_for_tables(self) -> bool:
        """Returns whether tables are not ready at the worker's position."""
        return self._tables.waits

    def note_tables(self, ledger: LedgerContent, published: LSN = NOTHING_PUBLISHED, stream: StreamState | None = None) -> None:
        """Like ``ReadyTables.know``. Call it before ``note`` for a batch, on the same thread."""
        if self._tables.know(ledger, published, stream):
            self._ready = self._tables.record
            self._tell()

    def note_paused_tables(self, oids: frozenset[int]) -> None:
        """Notes the tables whose changes are held back from now on; a sink that can do so calls it also with none."""
        if oids != self._paused_tables:
            self._paused_tables = oids
            self._tell()

    def note_unchanged(self, unchanged: UnchangedRows | None) -> None:
        """Notes the unchanged rows of the newest run of a SQL pipeline. Call it before ``note`` for its batch."""
        self._unchanged = unchanged or self._unchanged

    def note_missed(self, missed: Sequence[MissedChanges]) -> None:
        """Notes all changes that met no row, so far."""
        self._missed = missed
        self._tell()

    def note_held(self, sequence: int | None) -> None:
        """Notes that messages after that one are needed again; None: no applied one is."""
        if sequence != self._held:
            self._held = sequence
            self._tell()

    def _tell(self) -> None:
        """Signals once until it is heard: a busy worker has news many times a second."""
        loop = self._loop  # which ``stop`` takes away on another thread
        if loop is not None and not self._has_news:
            self._has_news = True
            loop.call_soon_threadsafe(self._news.set)

    async def start(self, on_ended: Ended) -> None:
        """Writes the first report, so that the group knows the worker before its first batch, then continues in the
        background. ``on_ended`` is called with the reason of its end. Applied rows are taken over from the report
        before."""
        await self._take_up()
        self._loop = asyncio.get_running_loop()
        await self._report()
        self._task = WatchedTask("the report of the worker's progress", self._report_for_ever(), on_ended)

    async def _take_up(self) -> None:
        try:
            before = await self._bucket.read(self._key, WorkerReport)
            ready = await self._bucket.read(self._ready_key, ReadyRecord)
        except PgsluiceError:
            return  # nothing depends on it, and the first report takes the place of one that is malformed
        if before is not None and before.value.snapshot_sequence == self._applied.snapshot_sequence:
            self._copied_at, self._unchanged = before.value.copied_at, before.value.unchanged
        if ready is not None:
            self._ready = self._told_ready = ready.value
            self._tables.take_up(ready.value)

    async def stop(self) -> None:
        """Writes the last report. Later notes are not reported."""
        self._loop = None
        if self._task is not None:
            await self._task.cancel()
            await self._report()

    async def _report_for_ever(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._has_news = False
            while self._reported != self._state:
                await self._report()
                await asyncio.sleep(REPORT_INTERVAL_S)

    async def _report(self) -> None:
        state = self._state
        try:
            await self._bucket.put(self._key, self._content())
            if self._newest and (self._reported is None or self._reported[1] != state[1]):
                await self._bucket.put(self._batches_key, BatchesRecord(self._started_at, tuple(self._newest)))
            await self._report_ready()
        except TransientError:
            return  # nothing depends on one report; the next carries the same facts
        self._reported = state

    async def _report_ready(self) -> None:
        ready = self._ready
        if ready != self._told_ready:
            await self._bucket.put(self._ready_key, ready)
            self._told_ready = ready

    @property
    def _state(self) -> _State:
        return self._applied, self._batches, self._missed, self._paused_tables, self._held, self._ready

    def _content(self) -> WorkerReport:
        applied = self._applied
        catch_up = applied.catch_up or CatchUp(0, 0, 0, frozenset())
        return WorkerReport(
            sequence=applied.sequence,
            snapshot_sequence=applied.snapshot_sequence,
            commit_lsn=format_lsn(applied.commit_lsn),
            committed_at=_timestamp(applied.committed_at),
            stream_created=applied.stream_created,
            rules=applied.rules,
            batches=self._batches,
            changes=self._changes,
            latency_p50_s=self._latencies.quantile(0.5),
            latency_p99_s=self._latencies.quantile(0.99),
            missed=report_missed(self._missed, self._transformation),
            missed_tables=len(self._missed),
            catching_up=tuple(sorted(catch_up.tables)),
            catch_up_sequence=catch_up.sequence,
            two_lanes=self._paused_tables is not None,
            paused_tables=tuple(sorted(self._paused_tables or ())),
            catch_up_lsn=format_lsn(catch_up.commit_lsn),
            held_sequence=self._held,
            copied_at=self._copied_at,
            unchanged=self._unchanged,
            started_at=self._started_at,
            updated_at=_now(),
            host=socket.gethostname(),
            pid=os.getpid(),
        )


class RecentLatencies:
    """Seconds of each batch's last transaction from its commit at the source until it was applied, over
    LATENCY_WINDOW_S; by the clocks of both machines. The driver knows no other transactions of a batch without counting
    them."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, float]] = deque(maxlen=MOST_LATENCIES)

    def note(self, committed_at: int) -> None:
        """``committed_at`` counts microseconds since 2000-01-01 UTC."""
        latency_s = (datetime.now(UTC) - POSTGRES_EPOCH).total_seconds() - committed_at / 1e6
        self._noted.append((time.monotonic(), max(0.0, latency_s)))

    def quantile(self, share: float) -> float | None:
        """Returns None where nothing was applied lately."""
        oldest = time.monotonic() - LATENCY_WINDOW_S
        recent = sorted(latency_s for at, latency_s in tuple(self._noted) if at >= oldest)
        return recent[min(len(recent) - 1, int(share * len(recent)))] if recent else None


class BatchLog:
    """One log line per BATCH_LOG_INTERVAL_S, for all batches of the interval."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._batches = self._changes = 0
        self._seconds = 0.0

    def note(self, applied: Applied, changes: int, seconds: float) -> None:
        self._batches += 1
        self._changes += changes
        self._seconds += seconds
        elapsed = time.monotonic() - self._since
        if elapsed >= BATCH_LOG_INTERVAL_S:
            log.info(
                "applied",
                changes=self._changes,
                batches=self._batches,
                changes_per_s=round(self._changes / elapsed),
                ms_per_batch=round(1000 * self._seconds / self._batches),
                sequence=applied.sequence,
                snapshot_sequence=applied.snapshot_sequence,
            )
            self._since, self._batches, self._changes, self._seconds = time.monotonic(), 0, 0, 0.0


async def check_report(bucket: StateBucket, worker: str, applied: Applied) -> None:
    """Raises TerminalError when the worker reported a position and its sink has none. Its data may exist nevertheless:
    to begin again would double rows without a key."""
    if applied.sequence or applied.snapshot_sequence:
        return
    entry = await bucket.read(worker_key(worker), WorkerReport)
    if entry is None or not (entry.value.sequence or entry.value.snapshot_sequence):
        return
    raise TerminalError(
        f"the sink has no position of worker '{worker}', which had applied changes up to message {entry.value.sequence} and"
        f" copied rows up to message {entry.value.snapshot_sequence}",
        "restore the position together with the data (postgres: the table pgsluice.applied; kafka: the topic pgsluice-positions);"
        " for a sink that is new and empty, give the worker another --name",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _timestamp(microseconds: int) -> str | None:
    """Returns RFC 3339 of a time in microseconds since 2000-01-01 UTC; None for 0, before the first transaction."""
    return (POSTGRES_EPOCH + timedelta(microseconds=microseconds)).isoformat() if microseconds else None
