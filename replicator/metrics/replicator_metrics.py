"""A replicator's counters while it publishes and copies, as samples."""

from __future__ import annotations

import time
from collections import Counter

from pgsluice.replicator.group_start import Run
from pgsluice.replicator.progress import PublishedCounts
from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.metric import Sample, TableNames
from pgsluice.shared.wire.position import POSTGRES_EPOCH

SOURCE_SILENCE_S = 30.0
"""A reachable source reports at least every ten seconds that there is nothing after the sent data."""

_COPY_PHASES = (Phase.INIT, Phase.DATA_SYNC, Phase.FINISHED_COPY, Phase.ERRORED, Phase.LEFT)
_EPOCH_S = POSTGRES_EPOCH.timestamp()


class ReplicatorMetrics:
    """Metrics of one process. ``tables`` is how many have a separate label."""

    def __init__(self, run: Run, tables: int) -> None:
        self._run = run
        self._names = TableNames(tables)

    def collect(self) -> list[Sample]:
        return self._published(self._run.counts) + self._copy()

    def _published(self, counts: PublishedCounts) -> list[Sample]:
        lag_s = source_lag_s(counts, time.time())
        return [
            metrics.PUBLISHED_CHANGES.at(counts.changes),
            metrics.PUBLISHED_MESSAGES.at(counts.messages),
            metrics.PUBLISHED_BYTES.at(counts.body_bytes),
            metrics.PUBLISH_SECONDS.of(counts.acknowledged_s.read()),
            metrics.PUBLISH_BLOCKED_SECONDS.at(counts.window_blocked_s, "window"),
            metrics.PUBLISH_BLOCKED_SECONDS.at(counts.full_blocked_s, "stream_full"),
            metrics.RECONNECTS.at(max(0, counts.sessions - 1), "source"),
            *([] if lag_s is None else [metrics.SOURCE_LAG_SECONDS.at(lag_s)]),
        ]

    def _copy(self) -> list[Sample]:
        """Returns nothing for a process that does not copy."""
        copy = self._run.copy
        if copy is None:
            return []
        records = copy.progress.records
        phases = Counter(record.phase for record in records)
        rows, done, left = self._by_table(records)
        samples = [metrics.COPY_TABLES.at(phases[phase], phase) for phase in _COPY_PHASES]
        samples.append(metrics.COPY_BYTES.at(sum(record.bytes for record in records)))
        samples += [metrics.COPY_ROWS.at(count, table) for table, count in rows.items()]
        samples += [metrics.COPY_RANGES.at(count, table, "done") for table, count in done.items()]
        samples += [metrics.COPY_RANGES.at(count, table, "left") for table, count in left.items()]
        if copy.snapshot_since is not None:
            samples.append(metrics.COPY_SNAPSHOT_SECONDS.at(time.monotonic() - copy.snapshot_since))
        return samples

    def _by_table(self, records: list[TableRecord]) -> tuple[Counter[str], Counter[str], Counter[str]]:
        """Returns rows, finished ranges, and remaining ranges."""
        rows, done, left = Counter[str](), Counter[str](), Counter[str]()
        for record in records:
            table = self._names.label(record.qualified_name)
            rows[table] += record.rows
            done[table] += record.ranges_done
            left[table] += record.ranges - record.ranges_done
        return rows, done, left


def source_lag_s(counts: PublishedCounts, now: float) -> float | None:
    """Returns the age in seconds of the newest published commit, at the Unix time ``now``; 0 while the source reports
    that it has nothing after it, None before anything is known."""
    if counts.is_at_end:
        silent_s = now - counts.reached_at
        return 0.0 if silent_s < SOURCE_SILENCE_S else silent_s
    if not counts.committed_at:
        return None
    return max(0.0, now - _EPOCH_S - counts.committed_at / 1e6)
