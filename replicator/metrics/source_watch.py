"""Facts from the source about the slot and its open transactions, read when a scrape asks for them.

Uses a separate connection: the session's is for statements that hold locks or see one moment, and it ends when the
session fails. Exactly then the WAL that the slot keeps is of interest.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import LiteralString

from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import Cause, PgsluiceError, TransientError
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.asked_looks import AskedLooks
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.wire.names import GroupNames

ANSWER_DEADLINE_S = 10.0
STALE_S = 30.0

# A transaction's first record holds back WAL, and the transaction holds a lock on its own id, which every role may see.
# A role may not see when other roles' transactions began (pg_read_all_stats): then ``known`` is smaller.
_LOOK: LiteralString = """
    WITH open AS (
        SELECT coalesce(p.prepared, a.xact_start) AS since
          FROM pg_locks l
          LEFT JOIN pg_stat_activity a ON a.pid = l.pid
          LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
         WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted)
    SELECT (pg_current_wal_lsn() - s.confirmed_flush_lsn)::bigint AS lag_bytes,
           (pg_current_wal_lsn() - s.restart_lsn)::bigint AS retained_bytes,
           s.safe_wal_size AS safe_bytes,
           (s.confirmed_flush_lsn - '0/0')::bigint AS confirmed_lsn,
           s.active,
           s.wal_status,
           t.spill_bytes AS spilled_bytes,
           t.spill_txns AS spilled_transactions,
           (SELECT count(*) FROM open) AS open,
           (SELECT count(since) FROM open) AS known,
           (SELECT extract(epoch FROM clock_timestamp() - min(since))::float8 FROM open) AS oldest_s
      FROM (SELECT %s AS slot) g
      LEFT JOIN pg_replication_slots s ON s.slot_name = g.slot
      LEFT JOIN pg_stat_replication_slots t ON t.slot_name = g.slot
"""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class SourceState:
    """None for missing or hidden values. ``open`` counts open transactions that have written, ``known`` the ones whose
    age this role may know; ``oldest_s`` is the highest age."""

    lag_bytes: int | None
    retained_bytes: int | None
    safe_bytes: int | None
    confirmed_lsn: int | None
    active: bool | None
    wal_status: str | None
    spilled_bytes: int | None
    spilled_transactions: int | None
    open: int
    known: int
    oldest_s: float | None

    def samples(self) -> list[Sample]:
        oldest_s = self.oldest_s if self.known else None if self.open else 0.0
        told = (
            (metrics.SLOT_LAG_BYTES, self.lag_bytes),
            (metrics.SLOT_RETAINED_WAL_BYTES, self.retained_bytes),
            (metrics.SLOT_SAFE_WAL_BYTES, self.safe_bytes),
            (metrics.SLOT_CONFIRMED_LSN, self.confirmed_lsn),
            (metrics.SLOT_ACTIVE, self.active),
            (metrics.SLOT_SPILLED_BYTES, self.spilled_bytes),
            (metrics.SLOT_SPILLED_TRANSACTIONS, self.spilled_transactions),
            (metrics.SOURCE_OLDEST_TRANSACTION_SECONDS, oldest_s),
        )
        samples = [metric.at(float(value)) for metric, value in told if value is not None]
        if self.wal_status is not None:
            samples += metrics.SLOT_WAL_STATUS.one_of(self.wal_status, metrics.WAL_STATUSES)
        return samples


class SourceWatch:
    """Used on one event loop, except ``collect``. Shows nothing while the source does not answer."""

    def __init__(self, settings: PostgresSettings, names: GroupNames) -> None:
        self._settings = settings
        self._slot = names.slot
        self._source: Source | None = None
        self._found: SourceState | None = None
        self._found_at = 0.0
        self._news = RetryNews()
        self._looks = AskedLooks()

    @property
    def answers(self) -> bool:
        """Returns whether the source answers. Queries it, so do not call it in the loop's thread."""
        return self._looked() is not None

    def collect(self) -> list[Sample]:
        found = self._looked()
        return [] if found is None else found.samples()

    def _looked(self) -> SourceState | None:
        self._looks.ask()
        return self._found if time.monotonic() - self._found_at < STALE_S else None

    async def run(self) -> None:
        """Runs until it is cancelled."""
        wanted, loop = asyncio.Event(), asyncio.get_running_loop()
        self._looks.begin(lambda: loop.call_soon_threadsafe(wanted.set))
        try:
            while await wanted.wait():
                wanted.clear()
                with self._looks.answering():
                    await self._look_within_deadline()
        finally:
            self._looks.end()
            await self._close()

    async def _look_within_deadline(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                self._found = await self._look()
            self._found_at = time.monotonic()
        except (PgsluiceError, TimeoutError) as error:  # errors that must end the process are reported by the session
            self._found = None
            if self._news.is_due(error):
                log.info("the source cannot be asked for metrics, trying again", reason=str(error) or "no answer")
            await self._close()

    async def _look(self) -> SourceState:
        if self._source is None:
            self._source = await Source.connect(self._settings)
        found = await self._source.rows_of(SourceState, "looking up the slot for metrics", _LOOK, [self._slot])
        if not found:
            raise TransientError("the source returned no state of the slot", cause=Cause.SOURCE)
        return found[0]

    async def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            await source.close()
