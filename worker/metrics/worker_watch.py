"""A worker's metrics that must be read first: its lag, Spark's memory, and the state of a pipeline's runs.

A separate thread reads them at a scrape. A value that could not be read, or is older than STALE_S because a read hangs,
is not shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgsluice.shared import telemetry
from pgsluice.shared.broker.lag import UNKNOWN_LAG, Lag
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.asked_looks import AskedLooks
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.process.defect import ended_task
from pgsluice.shared.spark.session import Spark
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.metrics.spark_memory import Heap, SparkMemory
from pgsluice.worker.sinks.sink import Applied

log = telemetry.logger(__name__)

STALE_S = 30.0
END_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class _WatchedValues:
    at: float
    lag: Lag = UNKNOWN_LAG
    heap: Heap | None = None
    python_rss: int | None = None
    runs: Sequence[Sample] = ()


class WorkerWatch:
    """Reads, when asked, from its creation on until ``close``; ``on_ended`` is called when that failed. ``runs`` reads
    the runs of a pipeline from the broker, and raises PgsluiceError."""

    def __init__(
        self,
        streams: GroupStreams,
        applied: Callable[[], Applied],
        spark: Spark,
        runs: Callable[[], Sequence[Sample]],
        on_ended: Callable[[PgsluiceError], None],
    ) -> None:
        self._streams = streams
        self._applied = applied
        self._memory = SparkMemory(spark)
        self._runs = runs
        self._on_ended = on_ended
        self._found = _WatchedValues(time.monotonic())
        self._is_closing = False
        self._wanted = threading.Event()
        self._looks = AskedLooks()
        self._looks.begin(self._wanted.set)
        self._thread = threading.Thread(target=self._run, name="pgsluice-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._looks.end()
        self._wanted.set()
        self._thread.join(END_DEADLINE_S)  # no longer: it may be asking a broker that is away

    def collect(self) -> list[Sample]:
        self._looks.ask()
        look = self._found
        if time.monotonic() - look.at > STALE_S:
            return []
        lag, heap = look.lag, look.heap
        found = (
            (metrics.APPLY_LAG_MESSAGES, lag.messages),
            (metrics.APPLY_LAG_BYTES, lag.bytes),
            (metrics.APPLY_LAG_SECONDS, lag.seconds),
            (metrics.PYTHON_WORKERS_RSS_BYTES, look.python_rss),
        )
        samples = [metric.at(value) for metric, value in found if value is not None]
        if heap is not None:
            samples += [metrics.JVM_HEAP_BYTES.at(heap.used, "used"), metrics.JVM_HEAP_BYTES.at(heap.most, "max")]
        return [*samples, *look.runs]

    def _run(self) -> None:
        try:
            while self._wanted.wait() and not self._is_closing:
                self._wanted.clear()
                with self._looks.answering():
                    self._found = self._look()
        except Exception as error:  # noqa: BLE001  nobody would print it
            if not self._is_closing:
                self._on_ended(ended_task("the watch for metrics", error))

    def _look(self) -> _WatchedValues:
        return _WatchedValues(time.monotonic(), self._lag(), self._memory.heap(), self._memory.python_rss(), self._runs_now())

    def _runs_now(self) -> Sequence[Sample]:
        try:
            return self._runs()
        except PgsluiceError as error:
            log.debug("how runs fare cannot be looked up for metrics", reason=str(error))
            return ()

    def _lag(self) -> Lag:
        try:
            return self._streams.lag(self._applied())
        except TransientError:
            return UNKNOWN_LAG
