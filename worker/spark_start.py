"""Log messages while Spark is not ready for the first batch."""

from __future__ import annotations

from concurrent.futures import Future

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TransientError
from pgsluice.shared.spark.executors import ExecutorWatch
from pgsluice.shared.spark.failure import failure_reason
from pgsluice.shared.spark.session import Spark

log = telemetry.logger(__name__)


class WaitingForExecutors:
    """``Patience`` while they are looked at. The question itself waits."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._watch = ExecutorWatch()

    @property
    def waiting_for(self) -> str:
        return "" if self._spark.executors else "Spark executors"

    def pause_after(self, error: TransientError | None) -> float:
        self._watch.look(self._spark)
        return 0.0


def log_failed_warm_up(warm_up: Future[None]) -> None:
    """Logs a failed warm-up. It is only for speed; the same error will fail the first batch, with a better message."""
    error = None if warm_up.cancelled() else warm_up.exception()
    if error is not None:
        log.info("warming up failed", reason=failure_reason(error) if isinstance(error, Exception) else type(error).__name__)
