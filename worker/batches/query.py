"""The streaming query of one worker: Spark calls back with micro-batches, each is written in tasks and committed by the sink."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process.defect import place_of
from pgsluice.shared.spark.session import Spark, failure_reason
from pgsluice.shared.wire.position import Anchor
from pgsluice.worker.batches.receipts import RECEIPT_SCHEMA, read_receipts, read_reports
from pgsluice.worker.batches.source import SOURCE_NAME, SourceSettings, change_source
from pgsluice.worker.batches.task import PartitionTask
from pgsluice.worker.dead_letters.filter import DiscardingWriter
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.sink import Applied, Delivery, PartitionWriter, PatientSink, Receipt, Sink

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 30.0
SPARK_FAILURES_BEFORE_GIVING_UP = 3  # of one batch; a job that fails for Spark's own reasons rarely succeeds later
DRAIN_DEADLINE_S = 25.0
EXECUTOR_CHECK_INTERVAL_S = 0.5

_DEFECT = "nothing was lost; a defect of the sink, or of pgsluice: start again, and report it when it comes again"

log = telemetry.logger(__name__)

BatchApplied = Callable[[Applied, int, float], None]
"""Called after each commit with the new position, the number of source changes and the seconds the batch took."""


class ChangeQuery:
    """Batches are applied one after the other; ``stop`` lets the one in hand finish."""

    def __init__(
        self,
        spark: Spark,
        sink: Sink,
        applied: Applied,
        stream_created: Callable[[], str],
        task: Callable[[PartitionWriter], PartitionTask],
        registry: DeadLetterRegistry,
        rules: str,
        on_applied: BatchApplied,
        on_waiting: Callable[[str], None],
        before: Anchor | None = None,
    ) -> None:
        """``stream_created`` and ``task``, which makes what the tasks of a batch are given, are asked at each attempt. ``rules``
        is the hash of the transformation that every task is given. ``on_waiting`` is told why a batch is tried again. ``before``
        is that of ``MessageChain``, for the first batch of changes."""
        self._spark = spark
        self._sink = sink
        self._task = task
        self._registry = registry
        self._rules = rules
        self._applied = applied
        self._stream_created = stream_created
        self._on_applied = on_applied
        self._on_waiting = on_waiting
        self._before = before
        self._in_batch = threading.Lock()
        self._stopping = threading.Event()
        self._error: PgsluiceError | None = None
        self._query: StreamingQuery | None = None

    def start(self, source: SourceSettings, *, drain: bool) -> None:
        """Begins after ``source.applied_sequence``. ``drain``: ends by itself at what the stream holds now."""
        session = self._spark.session
        session.dataSource.register(change_source(source))
        writer = session.readStream.format(SOURCE_NAME).load().writeStream.foreachBatch(self._apply)
        writer = writer.option("checkpointLocation", self._spark.checkpoint_directory())
        trigger = {"availableNow": True} if drain else {"processingTime": "0 seconds"}
        self._query = writer.trigger(**trigger).start()

    def ended(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s``; raises the error that ended the query."""
        assert self._query is not None
        try:
            ended = bool(self._query.awaitTermination(timeout_s))
        except PySparkException as error:
            raise _spark_failure(error) from None
        if self._error is not None:
            raise self._error
        return ended

    @property
    def applied(self) -> Applied:
        """What the sink has applied."""
        return self._applied

    def finish_copy(self, timeout_s: float) -> bool:
        """Has the sink finish a copy that is applied; False when batches left no room for that in time. Raises PgsluiceError."""
        return self.between_batches(self._sink.finish_copy, timeout_s)

    def between_batches(self, work: Callable[[], None], timeout_s: float) -> bool:
        """Calls ``work`` while no batch is in hand; False when batches left no room for that in time. Raises what it raises."""
        if not self._in_batch.acquire(timeout=timeout_s):
            return False
        try:
            work()
            return True
        finally:
            self._in_batch.release()

    def stop(self) -> None:
        """Lets the batch in hand finish, for DRAIN_DEADLINE_S at most; what is not committed by then is read again next time."""
        self._stopping.set()
        if self._query is None:
            return
        if self._batch_ends(time.monotonic() + DRAIN_DEADLINE_S):
            self._in_batch.release()
        else:
            log.warning("the batch in hand did not finish; it is applied again at the next start", waited_s=DRAIN_DEADLINE_S)
            if isinstance(self._sink, PatientSink):
                self._sink.break_off()  # Spark waits for the batch, however long it takes
            self._spark.cancel_jobs()
        with contextlib.suppress(Py4JError, OSError):  # a JVM that was killed took the query with it
            self._query.stop()

    def _batch_ends(self, deadline: float) -> bool:
        """Whether the batch in hand has ended by then: then the lock is ours. One that waits for executors does not end."""
        while not self._in_batch.acquire(timeout=EXECUTOR_CHECK_INTERVAL_S):
            if time.monotonic() > deadline or not self._spark.executors:
                return False
        return True

    def _apply(self, ranges: DataFrame, batch_id: int) -> None:
        with self._in_batch:
            try:
                self._apply_until_done(ranges)
            except PgsluiceError as error:
                self._end(error)
            except Exception as error:  # noqa: BLE001  Spark would print it, and its text may quote a row
                self._end(TransientError(f"an unexpected error ended a batch ({place_of(error)})", _DEFECT))

    def _end(self, error: PgsluiceError) -> None:
        """``ended`` raises the error; raised where it was met, Spark would print a Java stack trace."""
        self._error = error
        self._stopping.set()

    def _apply_until_done(self, ranges: DataFrame) -> None:
        pause = FIRST_RETRY_S
        spark_failures = 0
        rejections: Sequence[Rejection] = ()
        while not self._stopping.is_set():
            try:
                if rejections:
                    self._look_through(ranges, rejections)
                    rejections = ()
                self._apply_once(ranges)
                return
            except RejectedChanges as rejected:
                rejections = rejected.rejections
                continue
            except TransientError as error:
                self._on_waiting(str(error))
                log.warning("a batch could not be applied, trying again", reason=str(error), pause_s=pause)
            except (PySparkException, Py4JError) as error:
                spark_failures += 1
                if spark_failures == SPARK_FAILURES_BEFORE_GIVING_UP:
                    raise _spark_failure(error) from None
                log.warning("a Spark job failed, trying again", reason=failure_reason(error), pause_s=pause)
            self._stopping.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311  spreads retries, protects nothing
            pause = min(pause * 2, LONGEST_RETRY_S)

    def _apply_once(self, ranges: DataFrame) -> None:
        started = time.monotonic()
        receipts = read_receipts(self._written(ranges), self._applied, self._rules, self._before)
        first = next(receipts, None)
        if first is None:  # Spark runs a first batch even when there is nothing to read yet
            log.debug("nothing to apply yet")
            return
        counter = _Counter(chain([first], receipts))
        applied = self._sink.commit(counter, self._stream_created())
        if applied.sequence != self._applied.sequence:
            self._before = None
        self._applied = applied
        self._registry.settle()
        self._on_applied(self._applied, counter.changes, time.monotonic() - started)

    def _written(self, ranges: DataFrame) -> Iterator[Any]:
        """The rows of the tasks, whose dead letters are published by then. Raises RejectedChanges."""
        written = ranges.mapInArrow(self._task(self._sink.writer()), RECEIPT_SCHEMA)
        if self._sink.delivery is Delivery.STREAMED:
            for row in written.toLocalIterator(prefetchPartitions=True):
                self._registry.take(read_reports([row]))
                yield row
        else:
            rows = written.collect()
            self._registry.take(read_reports(rows))
            yield from rows
        self._registry.remove_truncated()

    def _look_through(self, ranges: DataFrame, rejections: Sequence[Rejection]) -> None:
        """Makes dead letters of changes that the sink refused, and blocks their rows."""
        self._registry.reject(rejections)
        rows = ranges.mapInArrow(self._task(DiscardingWriter()), RECEIPT_SCHEMA).collect()
        with contextlib.suppress(RejectedChanges):  # that rows are blocked now is what this was for
            self._registry.take(read_reports(rows))
        self._registry.check_found()


class _Counter:
    """Counts the changes of the receipts that pass through it."""

    def __init__(self, receipts: Iterator[Receipt]) -> None:
        self._receipts = receipts
        self.changes = 0

    def __iter__(self) -> Iterator[Receipt]:
        for receipt in self._receipts:
            self.changes += receipt.changes
            yield receipt


def _spark_failure(error: Exception) -> TransientError:
    return TransientError(
        f"Spark gave up on a job ({failure_reason(error)})",
        "nothing was lost; see the log lines of Spark above, then start again",
    )
