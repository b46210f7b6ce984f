"""A worker's counters of batches and dead letters, and their samples.

The thread that applies batches adds; the exports read. Nothing here waits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from pgsluice.shared.errors import Cause
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.metric import BYTES, CHANGES, SECONDS, Histogram, Sample, TableNames
from pgsluice.shared.wire.position import POSTGRES_EPOCH
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry, LetterState
from pgsluice.worker.metrics.batch_figures import BatchFigures
from pgsluice.worker.sinks.sink import MissedChanges

_STAGES = ("plan", "write", "commit")
_EPOCH_S = POSTGRES_EPOCH.timestamp()


class WorkerMetrics:
    """Counters of one worker, since its process began. ``tables`` is how many have a separate label."""

    def __init__(self, tables: int) -> None:
        self._registry: DeadLetterRegistry | None = None
        self._letters_before = 0
        self._names = TableNames(tables)
        self._commit_to_applied = Histogram(SECONDS)
        self._stages = {stage: Histogram(SECONDS) for stage in _STAGES}
        self._changes = Histogram(CHANGES)
        self._bytes = Histogram(BYTES)
        self._applied: Counter[tuple[str, str]] = Counter()
        self._filtered: Counter[str] = Counter()
        self._missing: Counter[tuple[str, str]] = Counter()
        self._retries: Counter[Cause] = Counter()

    def follow(self, registry: DeadLetterRegistry) -> None:
        """Counts the existing dead letters, and new ones. A worker that continues after a pause has another registry."""
        if self._registry is not None:
            self._letters_before += self._registry.published
        self._registry = registry

    def note_retry(self, cause: Cause) -> None:
        """Notes that a batch failed, and is tried again."""
        self._retries[cause] += 1

    def note_missed(self, missed: Sequence[MissedChanges]) -> None:
        """Takes the counts so far of changes that met no row, and should have met one."""
        counts: Counter[tuple[str, str]] = Counter()
        for each in missed:
            table = self._names.label(".".join(each.place))
            counts[table, "update"] += each.updates
            counts[table, "delete"] += each.deletes
        self._missing = counts

    def note_batch(self, figures: BatchFigures) -> None:
        """Notes that a batch is applied, just now."""
        applied_at = time.time()
        for committed_at in figures.committed_at:
            self._commit_to_applied.observe(max(0.0, applied_at - _EPOCH_S - committed_at / 1e6))
        for stage, seconds in zip(_STAGES, (figures.plan_s, figures.write_s, figures.commit_s), strict=True):
            self._stages[stage].observe(seconds)
        self._changes.observe(figures.changes)
        if figures.bytes:
            self._bytes.observe(figures.bytes)
        for (table, operation), count in figures.applied.items():
            self._applied[self._names.label(table), operation] += count
        for table, count in figures.filtered.items():
            self._filtered[self._names.label(table)] += count

    def collect(self) -> list[Sample]:
        return [
            metrics.COMMIT_TO_APPLIED_SECONDS.of(self._commit_to_applied.read()),
            *(metrics.BATCH_SECONDS.of(seconds.read(), stage) for stage, seconds in self._stages.items()),
            metrics.BATCH_CHANGES.of(self._changes.read()),
            metrics.BATCH_BYTES.of(self._bytes.read()),
            *(metrics.APPLIED_CHANGES.at(count, *labels) for labels, count in list(self._applied.items())),
            *(metrics.FILTERED_CHANGES.at(count, table) for table, count in list(self._filtered.items())),
            *(metrics.MISSING_ROWS.at(count, *labels) for labels, count in self._missing.items()),
            *(metrics.BATCH_RETRIES.at(self._retries[cause], cause) for cause in Cause),
            *self._letters(),
        ]

    def _letters(self) -> list[Sample]:
        registry = self._registry
        if registry is None:
            return []
        states = registry.states()
        return [
            *(metrics.DEAD_LETTERS.at(states[state], state) for state in LetterState),
            metrics.DEAD_LETTERS_LIMIT.at(registry.limit),
            metrics.DEAD_LETTERS_TOTAL.at(self._letters_before + registry.published),
        ]
