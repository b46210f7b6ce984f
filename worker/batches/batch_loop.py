"""The worker's loop over batches: each is planned, written by Spark tasks, and committed by the sink.

One thread applies batches, one after the other. Where the sink allows it (``Delivery.AHEAD``), another one has the next
batch planned and written meanwhile. A batch written ahead is discarded when anything goes wrong with the batch before
it: its tasks left out the changes that were known then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import assert_never

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, MissingPrivilegeError, PgsluiceError, TerminalError, TransientError
from pgsluice.shared.process.defect import unexpected
from pgsluice.shared.process.memory import give_back_freed_memory
from pgsluice.shared.process.retrying import Backoff, RetryNews
from pgsluice.shared.spark.failure import failure_reason
from pgsluice.worker.batches.planner import BatchPlanner, LanePlaces, PlannedBatch
from pgsluice.worker.batches.receipts import TaskAnswer, read_receipts, read_reports
from pgsluice.worker.dead_letters.filter import DiscardingWriter
from pgsluice.worker.dead_letters.refusals import as_waiting
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection, WriteAgain
from pgsluice.worker.definitions.refusal import RefusedDefinitionError
from pgsluice.worker.metrics.batch_figures import BatchFigures, BatchWaits, timed
from pgsluice.worker.running import RunningWorker
from pgsluice.worker.sinks.abilities import BlamingSink, PatientSink
from pgsluice.worker.sinks.sink import Delivery, Lane, PartitionWriter, Receipt

SPARK_FAILURES_BEFORE_GIVING_UP = 3  # of one batch; a job that fails for Spark's own reasons rarely succeeds later
DRAIN_DEADLINE_S = 25.0
EXECUTOR_CHECK_INTERVAL_S = 0.5
LOOK_INTERVAL_S = 5.0
END_DEADLINE_S = 5.0
KEEP_WARM_INTERVAL_S = 45.0

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The answers of one attempt's tasks, which began at ``began_at`` of the monotonic clock; an iterator runs them as
    it is consumed."""

    plan: PlannedBatch
    began_at: float
    answers: Iterable[TaskAnswer]
    figures: BatchFigures


class BatchLoop:
    """Applies batches until it is stopped, or until the worker's target is reached. ``stop`` lets the current one
    finish."""

    def __init__(self, worker: RunningWorker, planner: BatchPlanner) -> None:
        """``start_batches`` makes one."""
        self.applied = worker.start.applied
        """The sink's applied position."""
        self._lane = Lane.COPIED
        """Lane of the batch that was applied last: lanes take turns."""
        self._worker = worker
        self._planner = planner
        self._sink = worker.sink
        self._registry = worker.registry
        self._befores = {lane: worker.start.of(lane).before for lane in (Lane.CHANGES, Lane.CATCH_UP)}
        """Anchors that the next message of each lane names as before it, if other than the applied one."""
        self._turn = threading.Lock()
        """Held by the writer to the sink: a batch (and those that follow it at once), or work between them."""
        self._news = RetryNews()
        self._looking = Backoff(worker.settings.retry.nats)
        self._busy_at = time.monotonic()
        self._asking = 0
        """Number of threads that wait for their turn between batches."""
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._error: PgsluiceError | None = None
        self._writing_ahead = ThreadPoolExecutor(1, "pgsluice-ahead")
        self._ahead: Future[WrittenBatch | None] | None = None
        self._waits = BatchWaits(time.monotonic())
        """Waits of the current batch."""
        self._thread = threading.Thread(target=self._run, name="pgsluice-batches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ended(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s``; raises the error that ended the loop."""
        ended = self._ended.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return ended

    def between_batches(self, work: Callable[[], None], timeout_s: float) -> bool:
        """Calls ``work`` between two batches; False when batches left no room for that in time. Raises what it raises."""
        self._asking += 1
        try:
            if not self._turn.acquire(timeout=timeout_s):
                return False
        finally:
            self._asking -= 1
        try:
            work()
            return True
        finally:
            self._turn.release()

    def look_again(self) -> None:
        """Wakes the planner: there may be a batch that was not possible before."""
        self._planner.wake()

    def finish(self) -> None:
        """Begins no further batch; ``ended`` returns when the current one is finished."""
        self._stopping.set()
        self._planner.end()

    def stop(self) -> None:
        """Lets the current batch finish, for DRAIN_DEADLINE_S at most; uncommitted changes are read again next time."""
        self.finish()
        if self._batch_ends(time.monotonic() + DRAIN_DEADLINE_S):
            self._turn.release()
        else:
            log.warning("the current batch did not finish; it is applied again at the next start", waited_s=DRAIN_DEADLINE_S)
            if isinstance(self._sink, PatientSink):
                self._sink.break_off()
            self._worker.spark.cancel_jobs()
        if self._thread.is_alive():
            self._thread.join(END_DEADLINE_S)
        self._writing_ahead.shutdown(wait=False, cancel_futures=True)

    def _batch_ends(self, deadline: float) -> bool:
        """Returns whether the current batch has ended by then: then the caller holds the turn. One that waits for
        executors does not end."""
        while not self._turn.acquire(timeout=EXECUTOR_CHECK_INTERVAL_S):
            if time.monotonic() > deadline or not self._worker.spark.executors:
                return False
        return True

    def _run(self) -> None:
        try:
            with self._worker.spark.while_it_lives():
                self._apply_until_told()
        except PgsluiceError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  nobody would print it, and its text may quote a row
            self._error = unexpected(error, "a batch")
        finally:
            self._stopping.set()
            self._ended.set()

    def _apply_until_told(self) -> None:
        while not self._stopping.is_set() and not self._is_target_reached:
            plan = self._next_plan()
            if plan is None:
                self._keep_warm()
                continue
            with self._turn:
                self._apply_while_there_are_more(plan)
            self._busy_at = time.monotonic()
        if self._is_target_reached:
            with contextlib.suppress(TransientError):  # the times when tables became ready are only for readers
                self._worker.look_for_ready_tables()

    @property
    def _is_target_reached(self) -> bool:
        target = self._worker.target
        return target is not None and target.is_reached(self.applied)

    def _next_plan(self) -> PlannedBatch | None:
        try:
            self._worker.note_paused_tables()
            start, parallelism = LanePlaces.of(self.applied), self._worker.spark.parallelism
            plan = self._planner.next(start, parallelism, LOOK_INTERVAL_S, self._lane)
            if plan is None:
                self._worker.look_for_ready_tables()
            self._looking.note_success()
            self._worker.pulse.progressed(idle=plan is None)
            return plan
        except TransientError as error:
            pause_s = self._looking.next_pause_s()
            self._worker.pulse.waits(error, pause_s)
            if self._news.is_due(error):
                log.warning("the streams cannot be looked at, trying again", reason=str(error))
            self._stopping.wait(pause_s)
            return None

    def _keep_warm(self) -> None:
        """Keeps Spark warm, so that the first change after an hour is as fast as any; returns memory of the last load."""
        if time.monotonic() - self._busy_at >= KEEP_WARM_INTERVAL_S:
            with contextlib.suppress(PySparkException, Py4JError):  # the next batch will report it better
                self._worker.keep_warm()
            give_back_freed_memory()
            self._busy_at = time.monotonic()

    def _apply_while_there_are_more(self, plan: PlannedBatch) -> None:
        written: WrittenBatch | None = None
        while not self._stopping.is_set():
            try:
                self._apply_until_done(plan, written)
            except TerminalError:
                # The worker still applies the transactions before the one that needs an operator.
                if not self._planner.separate(plan):
                    raise
                return
            finally:
                written = self._take_ahead()
            if written is None:
                return
            plan = written.plan

    def _apply_until_done(self, plan: PlannedBatch, written: WrittenBatch | None) -> None:
        backoff = Backoff(self._worker.settings.retry.target)
        self._waits = BatchWaits(time.monotonic() if written is None else written.began_at)
        spark_failures = 0
        rejections: Sequence[Rejection] = ()
        while not self._stopping.is_set():
            try:
                if rejections:
                    self._take_out(plan, rejections)
                    rejections = ()
                self._apply_once(written or self._write(plan, self._sink.writer()))
                return
            except RejectedChanges as rejected:
                rejections = rejected.rejections
                pause_s = 0.0
                if isinstance(self._sink, BlamingSink):
                    self._sink.rejected()
            except WriteAgain:
                pause_s = 0.0
            except (TransientError, MissingPrivilegeError) as error:
                pause_s = backoff.next_pause_s()
                self._note_failure(as_waiting(error), pause_s)
                log.warning("a batch could not be applied, trying again", reason=str(error), pause_s=round(pause_s, 3))
            except (PySparkException, Py4JError) as error:
                spark_failures += 1
                if spark_failures == SPARK_FAILURES_BEFORE_GIVING_UP:
                    raise _spark_failure(error) from None
                pause_s = backoff.next_pause_s()
                self._note_failure(TransientError(f"a Spark job failed ({failure_reason(error)})", cause=Cause.SPARK), pause_s)
                log.warning("a Spark job failed, trying again", reason=failure_reason(error), pause_s=round(pause_s, 3))
            written = None
            self._waits.attempts += 1
            self._take_ahead()  # and discarded; its tasks are done by then, so their results are known
            self._stopping.wait(pause_s)

    def _note_failure(self, error: TransientError, pause_s: float) -> None:
        self._worker.pulse.waits(error, pause_s)
        self._worker.metrics.note_retry(error.cause)
        self._waits.note(error)

    def _write(self, plan: PlannedBatch, writer: PartitionWriter) -> WrittenBatch:
        """Starts the tasks of a batch; with STREAMED answers they run as the caller consumes them."""
        owned = self._worker.owned(plan)
        self._worker.judge_definitions(plan, owned)
        began_at, spark, task = time.monotonic(), self._worker.spark, self._worker.task(writer, owned)
        figures = BatchFigures(plan.planned_s)
        match self._sink.delivery:
            case Delivery.STREAMED:
                return WrittenBatch(plan, began_at, timed(spark.stream_tasks(task, plan.ranges), figures), figures)
            case Delivery.COLLECTED | Delivery.AHEAD:
                # Definitions cut a batch into many small partitions.
                answers = spark.run_tasks(task, plan.ranges, spark.parallelism if plan.definitions else None)
                figures.write_s = time.monotonic() - began_at
                return WrittenBatch(plan, began_at, answers, figures)
            case unreachable:
                assert_never(unreachable)

    def _apply_once(self, written: WrittenBatch) -> None:
        plan, figures, rules = written.plan, written.figures, self._worker.transformation.hash
        before = self._befores.get(plan.lane)
        receipts = read_receipts(figures.taken_from(self._reported(written)), self.applied, rules, before, plan.cohort)
        first = next(receipts, None)
        if first is None:
            raise TerminalError(
                f"the tasks of messages {written.plan.ranges[0].first_sequence} to {written.plan.ranges[-1].last_sequence} "
                "returned no receipt",
                "this is a defect of the sink: 'write' must yield one; nothing was applied",
            )
        with figures.committing():
            counted = self._counted(self._worker.definitions.in_place(chain([first], receipts)), figures)
            try:
                applied = self._sink.commit(counted, self._worker.streams.created())
            except RefusedDefinitionError as error:
                raise self._worker.definitions.refused(error) from None
        if applied.sequence_in(plan.lane) != self.applied.sequence_in(plan.lane):
            self._befores.pop(plan.lane, None)
        self.applied, self._lane = applied, plan.lane
        self._registry.settle()
        self._worker.definitions.settle()
        self._worker.note_batch(applied, figures, self._waits.record(plan.lane, figures, written.began_at))

    def _counted(self, receipts: Iterable[Receipt], figures: BatchFigures) -> Iterator[Receipt]:
        """Yields ``receipts``, as they pass: each that the sink asks for is progress."""
        for receipt in receipts:
            figures.changes += receipt.changes
            self._worker.pulse.moved()
            yield receipt

    def _reported(self, written: WrittenBatch) -> Iterator[TaskAnswer]:
        """Yields the answers of the tasks, whose dead letters are published by then. Raises RejectedChanges or
        WriteAgain."""
        if isinstance(written.answers, list):
            self._registry.take(read_reports(written.answers))
            self._registry.remove_truncated()
            self._write_ahead(written.plan)
            yield from written.answers
            return
        for answer in written.answers:
            self._registry.take(read_reports([answer]))
            yield answer
        self._registry.remove_truncated()

    def _write_ahead(self, plan: PlannedBatch) -> None:
        """Begins the batch after ``plan``'s, if there is one by now that may be written while that is committed."""
        if self._sink.delivery is Delivery.AHEAD and not (plan.is_fence or self._asking or self._stopping.is_set()):
            self._ahead = self._writing_ahead.submit(self._written_after, plan, self._sink.writer())

    def _written_after(self, plan: PlannedBatch, writer: PartitionWriter) -> WrittenBatch | None:
        following = self._planner.next(plan.end, self._worker.spark.parallelism, 0.0, plan.lane)
        if following is None or following.is_fence or following.lane is not plan.lane:
            return None
        return self._write(following, writer)

    def _take_ahead(self) -> WrittenBatch | None:
        """Returns the batch written ahead; None without one, or if it failed: then it is tried again in its turn."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        error = ahead.exception()
        if error is not None:
            log.debug("a batch could not be written ahead", reason=type(error).__name__)
            return None
        return ahead.result()

    def _take_out(self, plan: PlannedBatch, rejections: Sequence[Rejection]) -> None:
        """Has tasks look for changes that the sink refused, makes dead letters of them, and blocks their rows."""
        self._registry.reject(rejections)
        answers = self._worker.spark.run_tasks(self._worker.task(DiscardingWriter(), self._worker.owned(plan)), plan.ranges)
        with contextlib.suppress(RejectedChanges, WriteAgain):  # that rows are blocked now is what this was for
            self._registry.take(read_reports(answers))
        self._registry.check_found()


def start_batches(worker: RunningWorker) -> BatchLoop:
    """Begins after ``worker.start``. Spark has started."""
    loop = BatchLoop(worker, worker.planner())
    worker.prepare_rereading()
    loop.start()
    return loop


def _spark_failure(error: Exception) -> TransientError:
    return TransientError(
        f"Spark aborted a job ({failure_reason(error)})",
        "nothing was lost; see the log lines of Spark above, then start again",
        Cause.SPARK,
    )
