"""What the log says of a worker that runs: how much it applies, and that nobody is there to do it."""

from __future__ import annotations

import time

from pgsluice.shared import telemetry
from pgsluice.shared.spark.session import Spark
from pgsluice.worker.sinks.sink import Applied

BATCH_LOG_INTERVAL_S = 10.0

log = telemetry.logger(__name__)


class BatchLog:
    """One log line per BATCH_LOG_INTERVAL_S, for all batches of the interval; and one when there is nobody to run them."""

    def __init__(self) -> None:
        self._had_executors_at = time.monotonic()
        self._since = time.monotonic()
        self._batches = self._changes = 0
        self._seconds = 0.0

    def note_executors(self, spark: Spark) -> None:
        if spark.executors:
            self._had_executors_at = time.monotonic()
        elif time.monotonic() - self._had_executors_at >= BATCH_LOG_INTERVAL_S:
            self._had_executors_at = time.monotonic()
            log.warning("waiting for Spark executors", master=spark.context.master)

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
