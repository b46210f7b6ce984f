"""What the demo shows while it runs: how much was written at the source, where replicator and worker are, and how far behind."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.wire.position import LSN, parse_lsn
from tests.servers import Database

RATE_WINDOW_S = 3.0

_SOURCE = """
SELECT pg_current_wal_lsn()::text, (SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s)
"""
_TARGET = """
SELECT commit_lsn::text, batches, changes, extract(epoch FROM clock_timestamp() - committed_at)::float8
FROM pgsluice.applied WHERE group_name = %s AND worker = %s
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at everything. ``applied_lsn`` is the commit LSN of the last source transaction in the target.

    ``lag_s`` is how long a change at the source has been waiting for its place in the target: the time since that transaction
    was committed at the source, or since everything was applied, whichever is less; 0 while nothing waits.
    """

    taken_at: float
    written: int
    published_messages: int
    published_bytes: int
    applied: int
    batches: int
    source_lsn: LSN
    confirmed_lsn: LSN
    applied_lsn: LSN
    lag_s: float

    @property
    def lag_bytes(self) -> int:
        return max(0, self.source_lsn - self.applied_lsn)

    @property
    def confirm_lag_bytes(self) -> int:
        return max(0, self.source_lsn - self.confirmed_lsn)


class AppliedRow(NamedTuple):
    """The worker's position in the target."""

    commit_lsn: str
    batches: int
    changes: int
    age_s: float


class Observer:
    """Takes figures of one group with its worker ``postgres``."""

    def __init__(self, source: Database, target: Database, stream: ChangeStream, group: str, slot: str) -> None:
        self._source, self._target, self._stream = source.connect(), target.connect(), stream
        self._group, self._slot = group, slot
        self._all_applied_at = 0.0

    def close(self) -> None:
        self._source.close()
        self._target.close()

    async def look(self, now: float, written: int) -> Figures:
        """Before the worker's first batch its figures are 0."""
        row = self._source.execute(_SOURCE, [self._slot]).fetchone()
        assert row is not None
        source_lsn, confirmed_lsn = parse_lsn(row[0]), parse_lsn(row[1] or "0/0")
        state = await self._stream.state()
        applied = self._applied()
        if applied.changes >= written:
            self._all_applied_at = now
        return Figures(
            taken_at=now,
            written=written,
            published_messages=0 if state is None else state.last_sequence,
            published_bytes=0 if state is None else state.bytes,
            applied=applied.changes,
            batches=applied.batches,
            source_lsn=source_lsn,
            confirmed_lsn=confirmed_lsn,
            applied_lsn=parse_lsn(applied.commit_lsn),
            lag_s=max(0.0, min(applied.age_s, now - self._all_applied_at)),
        )

    def _applied(self) -> AppliedRow:
        known = self._target.execute("SELECT to_regclass('pgsluice.applied')").fetchone()
        row = self._target.execute(_TARGET, [self._group, "postgres"]).fetchone() if known and known[0] else None
        return AppliedRow("0/0", 0, 0, 0.0) if row is None else AppliedRow(*row)


class Rates:
    """Changes per second over the last few seconds, and lags."""

    def __init__(self) -> None:
        self._past: deque[Figures] = deque()
        self._lags_s: list[float] = []

    def add(self, figures: Figures) -> None:
        self._past.append(figures)
        while figures.taken_at - self._past[0].taken_at > RATE_WINDOW_S:
            self._past.popleft()
        self._lags_s.append(figures.lag_s)

    def _per_s(self, count: int) -> float:
        elapsed_s = self._past[-1].taken_at - self._past[0].taken_at
        return count / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def median_lag_s(self) -> float:
        """Of all figures so far."""
        return statistics.median(self._lags_s)

    @property
    def written_per_s(self) -> float:
        return self._per_s(self._past[-1].written - self._past[0].written)

    @property
    def applied_per_s(self) -> float:
        return self._per_s(self._past[-1].applied - self._past[0].applied)
