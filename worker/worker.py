"""The worker: reads one group's change stream with Spark and applies it to one sink.

This module names the steps; others know how. The position that counts is the sink's own, and Spark begins at it at each start.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, TypeVar

from nats.aio.client import Client

from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import check_tables, load_transformation
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.group_list import describe_groups, list_groups
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import HistoryError, PgsluiceError, TransientError
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.spark.java import check_java
from pgsluice.shared.spark.session import Spark, failure_reason
from pgsluice.shared.wire.names import GroupNames, check_worker_name, replay_name
from pgsluice.worker.batches.ownership import NEVER_COPIED, OwnershipLedger
from pgsluice.worker.batches.planning import BatchLimit
from pgsluice.worker.batches.query import FIRST_RETRY_S, LONGEST_RETRY_S, ChangeQuery
from pgsluice.worker.batches.source import SourceSettings
from pgsluice.worker.batches.task import PartitionTask
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.positions.check import Start
from pgsluice.worker.positions.lease import Lease
from pgsluice.worker.positions.missed_changes import MissedChangesLog
from pgsluice.worker.positions.report import BatchLog, ProgressReport, check_report
from pgsluice.worker.positions.target import CopyEnd, DrainTarget, check_until, find_drain_target
from pgsluice.worker.sinks.sink import Applied, PartitionWriter, RenumberedSink, Sink, TickingSink

POLL_INTERVAL_S = 0.5
WAIT_LOG_INTERVAL_S = 10.0
CLOSE_TIMEOUT_S = 5.0
CANCEL_INTERVAL_S = 0.2
_STREAMS = "the group's replicator, which creates the streams"

log = telemetry.logger(__name__)

T = TypeVar("T")

NewSink = Callable[[WorkerSettings], Sink]
"""Makes a sink for a worker of that name."""


def run(settings: WorkerSettings, new_sink: NewSink) -> None:
    """Applies the stream until a signal stops it, or until ``settings.until_sequence`` is reached. Raises PgsluiceError."""
    check_worker_name(settings.name)
    check_until(settings.until_sequence)
    check_java(os.environ)
    worker = Worker(settings, new_sink, load_transformation(settings.rules_file, settings.routing_file))
    with stop_signals.calling(worker.request_stop):
        try:
            worker.run()
        finally:
            worker.close()


class Worker:
    """One run of one worker."""

    def __init__(self, settings: WorkerSettings, new_sink: NewSink, transformation: Transformation) -> None:
        self._settings = settings
        self._transformation = transformation
        self._new_sink = new_sink
        self._sink = new_sink(settings)
        self._names = GroupNames(settings.group)
        self._stop_requested = threading.Event()
        self._failure: BaseException | None = None
        self._loop = EventLoopThread("pgsluice-worker-nats")
        self._spark = Spark(f"pgsluice {settings.group} {settings.name}", settings.spark, "pgsluice.worker.spark_daemon")
        self._starter = ThreadPoolExecutor(1, "spark-start")
        self._warming_up: Future[None] | None = None
        self._client: Client | None = None
        self._lease: Lease | None = None
        self._progress: ProgressReport | None = None
        self._copy_end: CopyEnd | None = None
        self._registry: DeadLetterRegistry | None = None
        self._replay: Replay | None = None
        self._streams: GroupStreams | None = None
        self._query: ChangeQuery | None = None
        self._batch_log = BatchLog()
        self._missed_log = MissedChangesLog(self._sink, transformation)
        self._ownership = NEVER_COPIED
        """What the newest batch was told of copies."""
        self._tick_logged_at = -WAIT_LOG_INTERVAL_S

    def request_stop(self) -> None:
        """The batch in hand is finished, then ``run`` returns. May be called from a signal's handler."""
        self._stop_requested.set()

    def run(self) -> None:
        """Raises what ended a task in the background, too."""
        with self._spark.while_it_lives():
            self._run()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        self._client = self._connect()
        if self._client is None:
            return
        starting = self._starter.submit(self._spark.start_session)  # seconds of a JVM's start, while we wait for others
        self._streams = streams = GroupStreams(self._loop, self._client, self._names)
        if self._wait_for(lambda: streams.exist() or None, _STREAMS, self._suspect_typo) is None:
            return
        bucket = StateBucket(self._client, self._names)
        if not self._acquire_lease(bucket):
            return
        applied = self._open_sink()
        if applied is None:
            return
        self._loop.run(check_report(bucket, self._settings.name, applied))
        start = self._find_start(applied)  # in the streams as they are now: we may have waited for the lease for months
        if start is None:
            return
        applied = start.applied
        if not self._check_transformation(bucket):
            return
        self._open_registry(applied)
        self._copy_end = CopyEnd(bucket)
        if self._loop.run(self._copy_end.is_reached(applied)):
            self._sink.finish_copy()
            self._copy_end.note_handled(applied)
        transformation = self._transformation
        self._progress = ProgressReport(bucket, self._settings.name, replace(applied, rules=transformation.hash), transformation)
        self._missed_log = MissedChangesLog(self._sink, transformation)
        self._progress.note_missed(self._missed_log.begin())
        self._loop.run(self._progress.start(self._end_with))
        target = self._find_target()
        if self._stop_requested.is_set():
            return
        if target is not None and target.is_reached(applied):
            log.info("nothing to do", applied=applied.sequence, target=target.sequence)
            return
        self._result_of(starting)
        if self._stop_requested.is_set():
            return
        self._warming_up = self._starter.submit(self._spark.warm_up)
        self._warming_up.add_done_callback(log_failed_warm_up)
        self._start_query(start, target)
        self._follow_query(ends_by_itself=target is not None)

    def close(self) -> None:
        """Stops in the order that loses nothing: no new batch, then the sink, then the lease, then the connections."""
        self._spark.expect_end()
        if self._query is not None:
            self._query.stop()
        self._sink.close()
        while self._warming_up is not None and not wait({self._warming_up}, CANCEL_INTERVAL_S).done:
            self._spark.cancel_jobs()  # it may wait for executors, for ever
        self._starter.shutdown(wait=True)
        if self._client is not None:
            try:
                self._loop.run(self._close_client(self._client), CLOSE_TIMEOUT_S)
            except (TimeoutError, PgsluiceError) as error:
                log.warning("the broker did not take our leave; the lease ends by itself", reason=type(error).__name__)
        self._spark.close()
        self._loop.close()
        log.info("worker stopped")

    async def _close_client(self, client: Client) -> None:
        if self._progress is not None:
            await self._progress.stop()
        if self._lease is not None:
            await self._lease.release()
        await disconnect(client)

    def _wait_for(self, question: Callable[[], T | None], waiting_for: str, hint: Callable[[], str] = lambda: "") -> T | None:
        """What ``question`` answers as soon as it answers something and raises no TransientError; None when asked to stop before.
        ``hint`` says what else may be the matter."""
        logged_at = time.monotonic() - WAIT_LOG_INTERVAL_S + POLL_INTERVAL_S
        while not self._stop_requested.is_set():
            reason = waiting_for
            try:
                answer = question()
            except TransientError as error:
                answer, reason = None, str(error)
            if answer is not None:
                return answer
            if time.monotonic() - logged_at > WAIT_LOG_INTERVAL_S:
                logged_at = time.monotonic()
                log.warning("waiting", waiting_for=reason, **({"or": said} if (said := hint()) else {}))
            self._stop_requested.wait(POLL_INTERVAL_S)
        return None

    def _connect(self) -> Client | None:
        """None when asked to stop before there was a connection."""
        settings = self._settings
        name = f"pgsluice worker {self._names.group}/{settings.name}"
        return self._answer(connect(settings.nats, name, settings.connect_timeout_s))

    def _answer(self, call: Coroutine[Any, Any, T]) -> T | None:
        """The call's result; None, with the call cancelled, when asked to stop before."""
        return self._result_of(asyncio.run_coroutine_threadsafe(call, self._loop.loop))

    def _result_of(self, future: Future[T]) -> T | None:
        """None, with the future cancelled if that is possible, when asked to stop before there is one."""
        while not self._stop_requested.is_set():
            if wait([future], POLL_INTERVAL_S).done:
                return future.result()
        future.cancel()
        return None

    def _suspect_typo(self) -> str:
        try:
            groups = self._loop.run(list_groups(self._connected))
        except TransientError as error:
            return f"group {self._names.group!r} is misspelt ({error.fact})"
        return f"group {self._names.group!r} is misspelt, or nats-url names another NATS; {describe_groups(groups)}"

    def _acquire_lease(self, bucket: StateBucket) -> bool:
        """False when asked to stop while waiting."""
        self._lease = Lease(bucket, self._settings.name)
        self._answer(self._lease.acquire(self._end_with))
        return not self._stop_requested.is_set()

    def _open_sink(self) -> Applied | None:
        """None when asked to stop while the sink is away."""
        pause, news = FIRST_RETRY_S, RetryNews()
        while not self._stop_requested.is_set():
            try:
                return self._sink.open()
            except TransientError as error:
                if news.is_due(error):
                    log.warning("the sink cannot be opened, trying again", reason=str(error), pause_s=pause)
            self._stop_requested.wait(pause)
            pause = min(2 * pause, LONGEST_RETRY_S)
        return None

    def _find_start(self, applied: Applied) -> Start | None:
        """Waits while the stream of changes ends before what is applied. None when asked to stop."""
        streams = self._group_streams
        start = self._wait_for(lambda: streams.find_start(applied), "the group's streams")
        if start is not None and start != Start(applied):
            log.warning(
                "the stream holds what is applied in another place than before, as after a power cut; going on there",
                sequence_before=applied.sequence,
                sequence=start.applied.sequence,
            )
            self._renumber(applied, start.applied)
        return start

    def _renumber(self, applied: Applied, found: Applied) -> None:
        """Of the same number the messages may be others: then only what to leave out of them is new."""
        if found == applied:
            return
        if not isinstance(self._sink, RenumberedSink):
            raise HistoryError(
                f"the stream holds what is applied at message {found.sequence} instead of {applied.sequence}, and this sink "
                "cannot move its position",
                "give the sink a method 'renumber', or drop the group and copy the tables again",
            )
        self._sink.renumber(found)

    def _end_with(self, error: BaseException) -> None:
        """A task in the background has ended, and with it this process: it finishes the batch in hand."""
        log.warning("stopping, for a part of this worker has ended", reason=str(error) or type(error).__name__)
        self._failure = self._failure or error
        self._stop_requested.set()

    def _find_target(self) -> DrainTarget | None:
        """None: go on for ever."""
        until = self._settings.until_sequence
        if not until:
            return None
        return self._wait_for(
            lambda: self._loop.run(find_drain_target(self._connected, self._names, until)), "the copy, or the end of the stream"
        )

    def _check_transformation(self, bucket: StateBucket) -> bool:
        """False when asked to stop while waiting for what the replicator says of its tables."""
        transformation = self._transformation
        if not transformation.hash:
            return True
        tables = self._wait_for(lambda: self._loop.run(load_tables(bucket)), "the group's replicator, which names its tables")
        if tables is None:
            return False
        check_tables(transformation, tables)
        self._transformation = transformation.knowing(tables)
        for warning in transformation.warnings(tables):
            log.warning("a rule may surprise", reason=warning)
        log.info("rules are in force", hash=transformation.hash)
        return True

    def _open_registry(self, applied: Applied) -> None:
        """Reads the dead letters, and replays those that are asked for."""
        settings = self._settings
        self._registry = DeadLetterRegistry(self._loop, self._connected, self._names, settings.name, settings.max_dead_letters)
        self._registry.load()
        replay_settings = replace(settings, name=replay_name(settings.name))
        self._replay = Replay(self._registry, self._transformation, lambda: self._new_sink(replay_settings))
        try:
            self._replay.run(applied)
        except TransientError as error:
            log.warning("dead letters could not be replayed yet", reason=str(error))

    def _start_query(self, start: Start, target: DrainTarget | None) -> None:
        applied, streams = start.applied, self._group_streams
        id_prefix = streams.id_prefix()
        assert self._registry is not None
        assert self._progress is not None
        settings, registry, transformation = self._settings, self._registry, self._transformation
        ownership = OwnershipLedger(StateBucket(self._connected, self._names))

        def task(writer: PartitionWriter) -> PartitionTask:
            owned = self._ownership = replace(self._loop.run(ownership.current()), applied_before=start.applied_before)
            excluded = registry.exclusions(owned)
            return PartitionTask(
                settings.nats,
                settings.group,
                settings.name,
                writer,
                owned,
                excluded,
                transformation,
                id_prefix,
                streams.is_text_unchecked(),
            )

        self._query = ChangeQuery(
            self._spark,
            self._sink,
            applied,
            streams.created,
            task=task,
            registry=registry,
            rules=transformation.hash,
            on_applied=self._note_batch,
            on_waiting=self._progress.note_waiting,
            before=start.before,
        )
        source = SourceSettings(
            nats=settings.nats,
            group=settings.group,
            snapshot_sequence=applied.snapshot_sequence,
            applied_sequence=applied.sequence,
            limit=BatchLimit(settings.batch_messages, settings.batch_bytes),
            parallelism=self._spark.parallelism,
            drain_to=target.sequence if target else 0,
        )
        self._query.start(source, drain=target is not None)
        log.info(
            "reading", worker=settings.name, group=settings.group, applied=applied.sequence, copied=applied.snapshot_sequence
        )

    def _follow_query(self, *, ends_by_itself: bool) -> None:
        assert self._query is not None
        while not self._stop_requested.is_set():
            if self._query.ended(POLL_INTERVAL_S):
                if not ends_by_itself:
                    raise TransientError("the streaming query ended by itself", "start the worker again")
                self._finish_copy(self._query)
                self._replay_letters(self._query)
                return
            try:
                self._finish_copy(self._query)
                self._replay_letters(self._query)
            except TransientError as error:
                log.warning("what comes between batches could not be done, trying again", reason=str(error))
            self._tick()
            self._group_streams.check_now_and_then(self._query.applied)
            self._batch_log.note_executors(self._spark)

    def _tick(self) -> None:
        if not isinstance(self._sink, TickingSink):
            return
        try:
            self._sink.tick()
        except TransientError as error:
            if time.monotonic() - self._tick_logged_at > WAIT_LOG_INTERVAL_S:
                self._tick_logged_at = time.monotonic()
                log.warning("the sink failed between batches, trying again", reason=str(error))

    def _finish_copy(self, query: ChangeQuery) -> None:
        """Does nothing unless a copy ended."""
        assert self._copy_end is not None
        applied = query.applied
        if self._loop.run(self._copy_end.is_reached(applied)) and query.finish_copy(POLL_INTERVAL_S):
            self._copy_end.note_handled(applied)

    def _replay_letters(self, query: ChangeQuery) -> None:
        """Does nothing while there are no dead letters."""
        assert self._registry is not None
        assert self._replay is not None
        replay = self._replay
        if self._registry.letters:
            query.between_batches(lambda: replay.run(query.applied), POLL_INTERVAL_S)

    def _note_batch(self, applied: Applied, changes: int, seconds: float) -> None:
        assert self._progress is not None
        self._progress.note(applied, changes)
        self._progress.note_missed(self._missed_log.note(self._ownership))
        self._batch_log.note(applied, changes, seconds)

    @property
    def _group_streams(self) -> GroupStreams:
        assert self._streams is not None
        return self._streams

    @property
    def _connected(self) -> Client:
        assert self._client is not None
        return self._client


def log_failed_warm_up(warm_up: Future[None]) -> None:
    """It is only for speed; what made it fail will fail the first batch, with a better sentence."""
    error = None if warm_up.cancelled() else warm_up.exception()
    if error is not None:
        log.info("warming up failed", reason=failure_reason(error) if isinstance(error, Exception) else type(error).__name__)
