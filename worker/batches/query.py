"""The streaming query of one worker: Spark calls back with micro-batches, each is written in tasks and committed by the sink."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, assert_never

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process.defect import unexpected
from pgsluice.shared.process.retrying import BATCH, Backoff
from pgsluice.shared.spark.session import failure_reason
from pgsluice.worker.batches.receipts import RECEIPT_SCHEMA, read_receipts, read_reports
from pgsluice.worker.batches.source import SOURCE_NAME, change_source
from pgsluice.worker.dead_letters.filter import DiscardingWriter
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection, WriteAgain
from pgsluice.worker.running import RunningWorker
from pgsluice.worker.sinks.sink import Applied, Delivery, PatientSink, Receipt

SPARK_FAILURES_BEFORE_GIVING_UP = 3  # of one batch; a job that fails for Spark's own reasons rarely succeeds later
DRAIN_DEADLINE_S = 25.0
EXECUTOR_CHECK_INTERVAL_S = 0.5

log = telemetry.logger(__name__)


class ChangeQuery:
    """A streaming query that runs. Batches are applied one after the other; ``stop`` lets the one in hand finish."""

    def __init__(self, worker: RunningWorker, query: StreamingQuery, batches: MicroBatches) -> None:
        """``start_query`` makes one."""
        self._worker = worker
        self._query = query
        self._batches = batches

    def ended(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s``; raises the error that ended the query."""
        try:
            ended = bool(self._query.awaitTermination(timeout_s))
        except PySparkException as error:
            raise _spark_failure(error) from None
        self._batches.raise_error()
        return ended

    @property
    def applied(self) -> Applied:
        """What the sink has applied."""
        return self._batches.applied

    def between_batches(self, work: Callable[[], None], timeout_s: float) -> bool:
        """Calls ``work`` while no batch is in hand; False when batches left no room for that in time. Raises what it raises."""
        if not self._batches.in_hand.acquire(timeout=timeout_s):
            return False
        try:
            work()
            return True
        finally:
            self._batches.in_hand.release()

    def stop(self) -> None:
        """Lets the batch in hand finish, for DRAIN_DEADLINE_S at most; what is not committed by then is read again next time."""
        self._batches.begin_no_more()
        if self._batch_ends(time.monotonic() + DRAIN_DEADLINE_S):
            self._batches.in_hand.release()
        else:
            log.warning("the batch in hand did not finish; it is applied again at the next start", waited_s=DRAIN_DEADLINE_S)
            if isinstance(self._worker.sink, PatientSink):
                self._worker.sink.break_off()  # Spark waits for the batch, however long it takes
            self._worker.spark.cancel_jobs()
        with contextlib.suppress(Py4JError, OSError):  # a JVM that was killed took the query with it
            self._query.stop()

    def _batch_ends(self, deadline: float) -> bool:
        """Whether the batch in hand has ended by then: then the lock is ours. One that waits for executors does not end."""
        while not self._batches.in_hand.acquire(timeout=EXECUTOR_CHECK_INTERVAL_S):
            if time.monotonic() > deadline or not self._worker.spark.executors:
                return False
        return True


def start_query(worker: RunningWorker) -> ChangeQuery:
    """Begins after ``worker.start``. With a target the query ends by itself at what the stream holds now."""
    session = worker.spark.session
    session.dataSource.register(change_source(worker.source()))
    batches = MicroBatches(worker)
    writer = session.readStream.format(SOURCE_NAME).load().writeStream.foreachBatch(batches.apply)
    writer = writer.option("checkpointLocation", worker.spark.checkpoint_directory())
    trigger = {"availableNow": True} if worker.target is not None else {"processingTime": "0 seconds"}
    return ChangeQuery(worker, writer.trigger(**trigger).start(), batches)


class MicroBatches:
    """What becomes of each batch of a query: it is tried until it is applied, or an error ends the query. ``in_hand`` is locked
    meanwhile."""

    def __init__(self, worker: RunningWorker) -> None:
        self.in_hand = threading.Lock()
        self.applied = worker.start.applied
        self._before = worker.start.before
        self._worker = worker
        self._sink = worker.sink
        self._registry = worker.registry
        self._stopping = threading.Event()
        self._error: PgsluiceError | None = None

    def begin_no_more(self) -> None:
        """A batch that is being tried again is given up, too."""
        self._stopping.set()

    def raise_error(self) -> None:
        """Raises what ended a batch; nothing happens when nothing did. Raised where it was met, Spark would print a Java stack
        trace."""
        if self._error is not None:
            raise self._error

    def apply(self, ranges: DataFrame, batch_id: int) -> None:
        """Spark's ``foreachBatch``."""
        with self.in_hand:
            try:
                self._apply_until_done(ranges)
            except PgsluiceError as error:
                self._end(error)
            except Exception as error:  # noqa: BLE001  Spark would print it, and its text may quote a row
                self._end(unexpected(error, "a batch"))

    def _end(self, error: PgsluiceError) -> None:
        self._error = error
        self._stopping.set()

    def _apply_until_done(self, ranges: DataFrame) -> None:
        backoff = Backoff(BATCH)
        spark_failures = 0
        rejections: Sequence[Rejection] = ()
        while not self._stopping.is_set():
            try:
                if rejections:
                    self._take_out(ranges, rejections)
                    rejections = ()
                self._apply_once(ranges)
                return
            except RejectedChanges as rejected:
                rejections = rejected.rejections
                continue
            except WriteAgain:
                continue
            except TransientError as error:
                self._worker.report.note_waiting(str(error))
                pause_s = backoff.next_pause_s()
                log.warning("a batch could not be applied, trying again", reason=str(error), pause_s=round(pause_s, 3))
            except (PySparkException, Py4JError) as error:
                spark_failures += 1
                if spark_failures == SPARK_FAILURES_BEFORE_GIVING_UP:
                    raise _spark_failure(error) from None
                pause_s = backoff.next_pause_s()
                log.warning("a Spark job failed, trying again", reason=failure_reason(error), pause_s=round(pause_s, 3))
            self._stopping.wait(pause_s)

    def _apply_once(self, ranges: DataFrame) -> None:
        started = time.monotonic()
        receipts = read_receipts(self._written(ranges), self.applied, self._worker.transformation.hash, self._before)
        first = next(receipts, None)
        if first is None:  # Spark runs a first batch even when there is nothing to read yet
            log.debug("nothing to apply yet")
            return
        counter = _Counter(chain([first], receipts))
        applied = self._sink.commit(counter, self._worker.streams.created())
        if applied.sequence != self.applied.sequence:
            self._before = None
        self.applied = applied
        self._registry.settle()
        self._worker.note_batch(applied, counter.changes, time.monotonic() - started)

    def _written(self, ranges: DataFrame) -> Iterator[Any]:
        """The rows of the tasks, whose dead letters are published by then. Raises RejectedChanges or WriteAgain."""
        written = ranges.mapInArrow(self._worker.task(self._sink.writer()), RECEIPT_SCHEMA)
        match self._sink.delivery:
            case Delivery.STREAMED:
                for row in written.toLocalIterator(prefetchPartitions=True):
                    self._registry.take(read_reports([row]))
                    yield row
            case Delivery.COLLECTED:
                rows = written.collect()
                self._registry.take(read_reports(rows))
                yield from rows
            case unreachable:
                assert_never(unreachable)
        self._registry.remove_truncated()

    def _take_out(self, ranges: DataFrame, rejections: Sequence[Rejection]) -> None:
        """Has tasks look for changes that the sink refused, makes dead letters of them, and blocks their rows."""
        self._registry.reject(rejections)
        rows = ranges.mapInArrow(self._worker.task(DiscardingWriter()), RECEIPT_SCHEMA).collect()
        with contextlib.suppress(RejectedChanges, WriteAgain):  # that rows are blocked now is what this was for
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
