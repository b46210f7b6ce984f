"""The worker: reads one group's change stream with Spark and applies it to one sink.

This module names the steps; others know how. The position that counts is the sink's own, and Spark begins at it at each start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from nats.aio.client import Client

from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import check_tables, load_transformation
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket, describe_groups, list_groups
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import HistoryError, PgsluiceError, TransientError
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.memory import reuse_freed_memory
from pgsluice.shared.process.retrying import BATCH
from pgsluice.shared.spark.failure import failure_reason
from pgsluice.shared.spark.java import check_java
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.wire.names import GroupNames, check_worker_name, replay_name
from pgsluice.worker.batches.batch_loop import start_batches
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.ownership import OwnershipLedger
from pgsluice.worker.batches.planner import Bell
from pgsluice.worker.batches.task import PRELOAD, WarmUp, modules_to_preload
from pgsluice.worker.between_batches import BetweenBatches
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.definitions.worker_definitions import WorkerDefinitions
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.positions.check import Start
from pgsluice.worker.positions.lease import Lease
from pgsluice.worker.positions.missed_changes import MissedChangesLog
from pgsluice.worker.positions.report import BatchLog, ProgressReport, check_report
from pgsluice.worker.positions.target import CopyEnd, DrainTarget, check_until, find_drain_target
from pgsluice.worker.running import RunningWorker
from pgsluice.worker.sinks.sink import Applied, RenumberedSink, Sink
from pgsluice.worker.stopping import Retrying, Stopping, StopRequested, Waiting

CLOSE_TIMEOUT_S = 5.0
CANCEL_INTERVAL_S = 0.2

log = telemetry.logger(__name__)

NewSink = Callable[[WorkerSettings], Sink]
"""Makes a sink for a worker of that name."""


def run(settings: WorkerSettings, new_sink: NewSink) -> None:
    """Applies the stream until a signal stops it, or until ``settings.until_sequence`` is reached. Raises PgsluiceError."""
    reuse_freed_memory()
    check_worker_name(settings.name)
    check_until(settings.until_sequence)
    check_java(os.environ)
    Policies.parse(settings.ddl, settings.ddl_policy)  # what is wrong with it is said before anything is started
    transformation = load_transformation(settings.rules_file, settings.routing_file)
    worker = Worker(settings, new_sink, transformation)
    with stop_signals.calling(worker.request_stop):
        try:
            worker.run()
        finally:
            worker.close()


class Worker:
    """One run of one worker. What is made on the way is closed in the order that loses nothing: no new batch, then the sink, then
    the lease, then the connections."""

    def __init__(self, settings: WorkerSettings, new_sink: NewSink, transformation: Transformation) -> None:
        self._settings = settings
        self._transformation = transformation
        self._new_sink = new_sink
        self._sink = new_sink(settings)
        self._names = GroupNames(settings.group)
        self._stopping = Stopping()
        self._loop = EventLoopThread("pgsluice-worker-nats")
        preload = {f"spark.executorEnv.{PRELOAD}": modules_to_preload(self._sink, transformation)}
        spark_settings = preload | dict(settings.spark)
        self._spark = Spark(f"pgsluice {settings.group} {settings.name}", spark_settings, "pgsluice.worker.spark_daemon")
        self._starter = ThreadPoolExecutor(1, "spark-start")
        self._leaving: list[Callable[[], Awaitable[None]]] = []
        """What ends the worker's part in the broker, the last one first."""
        self._closing = contextlib.ExitStack()
        for close in (self._loop.close, self._spark.close, self._leave, self._starter.shutdown, self._sink.close):
            self._closing.callback(close)

    def request_stop(self) -> None:
        """The batch in hand is finished, then ``run`` returns. May be called from a signal's handler."""
        self._stopping.request()

    def run(self) -> None:
        """Raises what ended a task in the background, too."""
        with self._spark.while_it_lives(), contextlib.suppress(StopRequested):
            self._run()
        self._stopping.raise_failure()

    def close(self) -> None:
        """The last of what was begun is ended first."""
        self._spark.expect_end()
        self._closing.close()
        log.info("worker stopped")

    def _run(self) -> None:
        client = self._connect()
        spark_starts = self._starter.submit(self._spark.start)  # seconds of a JVM's start, while we wait for others
        running = self._start(client)
        applied, target = running.start.applied, running.target
        if target is not None and target.is_reached(applied):
            log.info("nothing to do", applied=applied.sequence, target=target.sequence)
            return
        self._stopping.result_of(spark_starts)
        self._warm_up()
        batches = start_batches(running)
        self._closing.callback(batches.stop)
        worker, group = self._settings.name, self._settings.group
        log.info("reading", worker=worker, group=group, applied=applied.sequence, copied=applied.snapshot_sequence)
        BetweenBatches(running, batches).follow(self._stopping)

    def _start(self, client: Client) -> RunningWorker:
        """Waits until this worker may apply. Raises StopRequested when it is asked to stop before."""
        settings, bucket = self._settings, StateBucket(client, self._names)
        streams = self._existing_streams(client)
        self._take_lease(bucket)
        applied = self._stopping.wait_for(self._sink.open, Retrying("the sink cannot be opened, trying again", BATCH))
        self._loop.run(check_report(bucket, settings.name, applied))
        start = self._find_start(streams, applied)  # in the streams as they are now: we may have waited for the lease for months
        definitions = WorkerDefinitions(self._loop, bucket, settings, self._sink)
        transformation = definitions.begin(self._checked_transformation(bucket))
        registry = self._load_letters(client)
        replay = self._replay_letters(registry, transformation, start.applied)
        copy_end = self._finish_copy(bucket, start.applied)
        missed_log = MissedChangesLog(self._sink, transformation)
        report = self._start_report(bucket, start.applied, transformation, missed_log)
        target = self._find_target(client)
        self._stopping.check()
        return RunningWorker(
            settings=settings,
            loop=self._loop,
            connection=BrokerConnection(self._names, self._loop, client),
            bell=self._listen(client),
            spark=self._spark,
            sink=self._sink,
            streams=streams,
            start=start,
            target=target,
            transformation=transformation,
            ownership=OwnershipLedger(bucket),
            registry=registry,
            replay=replay,
            copy_end=copy_end,
            report=report,
            missed_log=missed_log,
            definitions=definitions,
            batch_log=BatchLog(),
        )

    def _connect(self) -> Client:
        settings = self._settings
        name = f"pgsluice worker {self._names.group}/{settings.name}"
        connecting = connect(settings.nats, name, settings.connect_timeout_s)
        client = self._stopping.result_of(asyncio.run_coroutine_threadsafe(connecting, self._loop.loop))
        self._leaving.append(lambda: disconnect(client))
        return client

    def _existing_streams(self, client: Client) -> GroupStreams:
        streams = GroupStreams(self._loop, client, self._names)
        patience = Waiting("the group's replicator, which creates the streams", lambda: self._suspect_typo(client))
        self._stopping.wait_for(lambda: streams.exist() or None, patience)
        return streams

    def _suspect_typo(self, client: Client) -> str:
        try:
            groups = self._loop.run(list_groups(client))
        except TransientError as error:
            return f"group {self._names.group!r} is misspelt ({error.fact})"
        return f"group {self._names.group!r} is misspelt, or nats-url names another NATS; {describe_groups(groups)}"

    def _take_lease(self, bucket: StateBucket) -> None:
        lease = Lease(bucket, self._settings.name)
        self._leaving.append(lease.release)
        acquiring = lease.acquire(self._stopping.end_with)
        self._stopping.result_of(asyncio.run_coroutine_threadsafe(acquiring, self._loop.loop))

    def _find_start(self, streams: GroupStreams, applied: Applied) -> Start:
        """Waits while the stream of changes ends before what is applied."""
        start = self._stopping.wait_for(lambda: streams.find_start(applied), Waiting("the group's streams"))
        if start != Start(applied):
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

    def _checked_transformation(self, bucket: StateBucket) -> Transformation:
        """Rules and routes that know the tables which the replicator publishes. Waits for what it says of them."""
        transformation = self._transformation
        if not transformation.hash:
            return transformation
        tables = self._stopping.wait_for(
            lambda: self._loop.run(load_tables(bucket)), Waiting("the group's replicator, which names its tables")
        )
        check_tables(transformation, tables)
        for warning in transformation.warnings(tables):
            log.warning("a rule may surprise", reason=warning)
        log.info("rules are in force", hash=transformation.hash)
        return transformation.knowing(tables)

    def _load_letters(self, client: Client) -> DeadLetterRegistry:
        settings = self._settings
        registry = DeadLetterRegistry(self._loop, client, self._names, settings.name, settings.max_dead_letters)
        registry.load()
        return registry

    def _replay_letters(self, registry: DeadLetterRegistry, transformation: Transformation, applied: Applied) -> Replay:
        """Replays the letters that are asked for, if that is possible now."""
        settings = replace(self._settings, name=replay_name(self._settings.name))
        replay = Replay(registry, transformation, lambda: self._new_sink(settings))
        try:
            replay.run(applied)
        except TransientError as error:
            log.warning("dead letters could not be replayed yet", reason=str(error))
        return replay

    def _finish_copy(self, bucket: StateBucket, applied: Applied) -> CopyEnd:
        """Has the sink finish a copy that was applied before this start."""
        copy_end = CopyEnd(bucket)
        if self._loop.run(copy_end.is_reached(applied)):
            self._sink.finish_copy()
            copy_end.note_handled(applied)
        return copy_end

    def _start_report(
        self, bucket: StateBucket, applied: Applied, transformation: Transformation, missed_log: MissedChangesLog
    ) -> ProgressReport:
        applied = replace(applied, rules=transformation.hash)
        report = ProgressReport(bucket, self._settings.name, applied, transformation)
        report.note_missed(missed_log.begin())
        self._leaving.append(report.stop)
        self._loop.run(report.start(self._stopping.end_with))
        return report

    def _listen(self, client: Client) -> Bell:
        bell = Bell()
        self._loop.run(bell.listen(client, self._names))
        return bell

    def _find_target(self, client: Client) -> DrainTarget | None:
        """None: go on for ever."""
        until = self._settings.until_sequence
        if not until:
            return None
        patience = Waiting("the copy, or the end of the stream")
        return self._stopping.wait_for(lambda: self._loop.run(find_drain_target(client, self._names, until)), patience)

    def _warm_up(self) -> None:
        """In the background, while the first batch is planned."""
        warming_up = self._starter.submit(self._spark.warm_up, WarmUp(self._settings.nats, self._settings.group))
        warming_up.add_done_callback(log_failed_warm_up)
        self._closing.callback(self._end_warm_up, warming_up)

    def _end_warm_up(self, warming_up: Future[None]) -> None:
        while not wait({warming_up}, CANCEL_INTERVAL_S).done:
            self._spark.cancel_jobs()  # it may wait for executors, for ever

    async def _leave_broker(self) -> None:
        while self._leaving:
            await self._leaving.pop()()

    def _leave(self) -> None:
        try:
            self._loop.run(self._leave_broker(), CLOSE_TIMEOUT_S)
        except (TimeoutError, PgsluiceError) as error:
            log.warning("the broker did not take our leave; the lease ends by itself", reason=type(error).__name__)


def log_failed_warm_up(warm_up: Future[None]) -> None:
    """It is only for speed; what made it fail will fail the first batch, with a better sentence."""
    error = None if warm_up.cancelled() else warm_up.exception()
    if error is not None:
        log.info("warming up failed", reason=failure_reason(error) if isinstance(error, Exception) else type(error).__name__)
