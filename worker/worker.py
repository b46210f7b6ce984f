"""The worker: reads one group's change stream with Spark and applies it to one sink.

This module names the steps; others know how. The position that counts is the sink's own, and Spark begins at it at each start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING

from nats.aio.client import Client

from pgsluice.rules.transformation import Transformation
from pgsluice.shared import telemetry
from pgsluice.shared.alerts.alert_watch import AlertWatch
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.config.declaration import files_of
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.domain import check_domain
from pgsluice.shared.process.memory import reuse_freed_memory
from pgsluice.shared.process.pulse import Activity, Pulse
from pgsluice.shared.spark.executors import check_executors
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.spark.spark_settings import with_most_cores
from pgsluice.shared.wire.names import GroupNames, replay_name
from pgsluice.worker.batches.batch_loop import BatchLoop, start_batches
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.ownership import OwnershipLedger
from pgsluice.worker.batches.planner import WakeUp
from pgsluice.worker.batches.task import PRELOAD, WarmUp, modules_to_preload
from pgsluice.worker.batches.task_steps import listen_to_steps
from pgsluice.worker.between_batches import BetweenBatches
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.definitions.worker_definitions import WorkerDefinitions
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.metrics.worker_vitals import WorkerVitals
from pgsluice.worker.positions.lease import Lease
from pgsluice.worker.positions.missed_changes import MissedChangesLog
from pgsluice.worker.positions.report import BatchLog, ProgressReport, check_report
from pgsluice.worker.positions.start_place import find_start
from pgsluice.worker.positions.target import CopyEnd, DrainTarget, find_drain_target
from pgsluice.worker.running import RunningWorker
from pgsluice.worker.sinks.abilities import FileReadingSink, MissingRowSink, PatientSink, ReportingSink
from pgsluice.worker.sinks.sink import Applied, Sink
from pgsluice.worker.spark_start import WaitingForExecutors, log_failed_warm_up
from pgsluice.worker.start_checks import check_places, check_start, check_transformation, warn_of_destination
from pgsluice.worker.stopping import POLL_INTERVAL_S, PauseRequested, Retrying, StopRequested, Waiting, WorkerStopping
from pgsluice.worker.unit import WorkerUnit

CLOSE_TIMEOUT_S = 5.0
CANCEL_INTERVAL_S = 0.2

MOST_CORES_OF_A_CLUSTER = 4
"""Default limit: a batch of the usual size has this many partitions."""

log = telemetry.logger(__name__)

if TYPE_CHECKING:
    from pgsluice.worker.kafka_source.range_index import RangeIndex

NewSink = Callable[[WorkerSettings], Sink]
"""Makes a sink for a worker of that name."""


def run(settings: WorkerSettings, new_sink: NewSink) -> None:
    """Applies the stream until a signal stops it, or until ``settings.until_sequence`` is reached. Raises PgsluiceError."""
    reuse_freed_memory()
    transformation = check_start(settings)
    worker = Worker(settings, new_sink, transformation)
    with stop_signals.calling(worker.request_stop):
        try:
            worker.run()
        finally:
            worker.close()


class Worker:
    """One run of one worker. Parts are closed in a sequence that loses nothing: no new batch, then the sink, then the
    lease, then the connections."""

    def __init__(self, settings: WorkerSettings, new_sink: NewSink, transformation: Transformation) -> None:
        self._settings = settings
        self._transformation = transformation
        self._make_sink = new_sink
        self._pulse = Pulse()
        self._sink = self._new_sink(settings)
        self._names = GroupNames(settings.group)
        self._stopping = WorkerStopping(self._pulse)
        self._ended_by: BaseException | None = None
        self._loop = EventLoopThread("pgsluice-worker-nats")
        preload = {f"spark.executorEnv.{PRELOAD}": modules_to_preload(self._sink, transformation)}
        spark_settings = with_most_cores(preload | dict(settings.spark), MOST_CORES_OF_A_CLUSTER)
        self._spark = Spark(f"pgsluice {settings.group} {settings.name}", spark_settings, "pgsluice.worker.spark_daemon")
        self._starter = ThreadPoolExecutor(1, "spark-start")
        self._leaving: list[Callable[[], Awaitable[None]]] = []
        """Calls that end the worker's part in the broker, the last one first."""
        self._closing = contextlib.ExitStack()
        self._vitals = WorkerVitals(settings, self._pulse, self._stopping.end_with)
        for close in (
            self._vitals.close,
            self._loop.close,
            self._spark.close,
            self._leave,
            self._starter.shutdown,
            self._release_held,
            self._vitals.detach,
        ):
            self._closing.callback(close)
        self._held = contextlib.ExitStack()
        """Resources that a pause releases, the last one first: the batches, and the sink's connections."""
        self._held.callback(self._sink.close)
        self._report: ProgressReport | None = None
        self._target: DrainTarget | None = None
        self._paused_tables: Callable[[], frozenset[int]] = frozenset

    def request_stop(self) -> None:
        """Requests a stop: the current batch is finished, then ``run`` returns. May be called from a signal's handler."""
        self._stopping.request()

    def run(self) -> None:
        """Raises what ended a task in the background, too."""
        try:
            with self._spark.while_it_lives(), contextlib.suppress(StopRequested):
                self._run()
            self._stopping.raise_failure()
        except BaseException as error:
            self._ended_by = error
            raise
        finally:
            self._pulse.activity = Activity.ENDING

    def close(self) -> None:
        """Closes in reverse: the last of what was begun is ended first."""
        self._spark.expect_end()
        self._closing.close()
        log.info("worker stopped")

    def _run(self) -> None:
        self._vitals.begin()
        client = self._connect()
        spark_starts = self._starter.submit(self._spark.start)  # a JVM's start takes seconds, in parallel to other waits
        index = self._index_kafka(client)
        streams = self._existing_streams(client)
        self._become_unit(client)
        wake_up = self._listen(client)
        self._follow_kafka(index, wake_up)
        while True:
            self._stopping.rest()
            try:
                self._apply(client, streams, wake_up, spark_starts)
                return
            except PauseRequested:
                self._release_held()
            self._sink = self._new_sink(self._settings)
            self._held.callback(self._sink.close)

    def _new_sink(self, settings: WorkerSettings) -> Sink:
        sink = self._make_sink(settings)
        if isinstance(sink, ReportingSink):
            sink.report_to(self._pulse)
        return sink

    def _apply(self, client: Client, streams: GroupStreams, wake_up: WakeUp, spark_starts: Future[None]) -> None:
        """Applies changes from the sink's position to the end, or to a pause: then it raises PauseRequested, between
        two batches."""
        running = self._start(client, streams, wake_up)
        applied, target = running.start.applied, running.target
        if target is not None and target.is_reached(applied):
            log.info("nothing to do", applied=applied.sequence, target=target.sequence)
            return
        self._stopping.result_of(spark_starts)
        self._check_executors()
        self._warm_up()
        batches = start_batches(running)
        self._held.callback(batches.stop)
        self._vitals.follow(running, lambda: batches.applied)
        worker, group = self._settings.name, self._settings.group
        log.info("reading", worker=worker, group=group, applied=applied.sequence, copied=applied.snapshot_sequence)
        self._pulse.activity = Activity.WORKING
        try:
            BetweenBatches(running, batches).follow(self._stopping)
        except PauseRequested:
            self._finish_batch(batches)
            raise

    def _finish_batch(self, batches: BatchLoop) -> None:
        """Returns when the current batch is applied, or when that may never end: ``BatchLoop.stop`` ends it then."""
        log.info("pausing when the current batch is applied")
        batches.finish()
        while not batches.ended(POLL_INTERVAL_S):
            if self._stopping.is_requested or isinstance(self._sink, PatientSink) or not self._spark.executors:
                return

    def _become_unit(self, client: Client) -> None:
        """Waits for the lease. Raises StopRequested at once when this worker must stop."""
        settings, bucket = self._settings, StateBucket(client, self._names)
        unit = WorkerUnit(settings.name, bucket, self._loop, self._stopping, self._pulse)
        self._leaving.append(unit.stop_applying)
        looking = Retrying("the desired state of this worker cannot be read", settings.retry.nats)
        self._stopping.wait_for(unit.begin_applying, looking)
        self._stopping.check()
        self._take_lease(bucket)
        unit.report()
        self._paused_tables = lambda: unit.paused_tables
        self._leaving.append(lambda: unit.tell_end(self._ended_by))
        me = worker_unit(settings.name)
        unit.watch(AlertWatch(settings.alerts, self._names, me, lambda: client, settings.retry.webhook))

    def _start(self, client: Client, streams: GroupStreams, wake_up: WakeUp) -> RunningWorker:
        """Waits until this worker may apply. Raises StopRequested or PauseRequested when that is asked for before."""
        settings, bucket = self._settings, StateBucket(client, self._names)
        opening = Retrying("the sink cannot be opened, trying again", settings.retry.target)
        applied = self._stopping.wait_for(self._sink.open, opening)
        self._loop.run(check_report(bucket, settings.name, applied))
        # In the current streams: the wait for the lease may have taken months.
        start = find_start(streams, self._sink, applied, self._stopping)
        definitions = WorkerDefinitions(self._loop, bucket, settings, self._sink)
        transformation = definitions.begin(self._checked_transformation(bucket))
        tables = self._loop.run(load_tables(bucket))
        check_places(self._sink, transformation, tables)
        warn_of_destination(self._sink, start.applied, transformation, tables)
        _expect_missing(self._sink, transformation)
        registry = self._load_letters(client)
        replay = self._replay_letters(registry, transformation, start.applied)
        copy_end = self._finish_copy(bucket, start.applied)
        missed_log = MissedChangesLog(self._sink, transformation)
        report = self._start_report(bucket, start.applied, transformation, missed_log)
        self._target = target = self._target or self._find_target(client)
        self._stopping.check()
        return RunningWorker(
            settings=settings,
            loop=self._loop,
            connection=BrokerConnection(self._names, self._loop, client),
            wake_up=wake_up,
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
            pulse=self._pulse,
            paused_tables=self._paused_tables,
            metrics=self._vitals.metrics,
        )

    def _connect(self) -> Client:
        settings = self._settings
        name = f"pgsluice worker {self._names.group}/{settings.name}"
        connecting = connect(settings.nats, name, settings.connect_timeout_s)
        client = self._stopping.result_of(asyncio.run_coroutine_threadsafe(connecting, self._loop.loop))
        self._leaving.append(lambda: disconnect(client))
        check_domain(settings.placement, client)
        self._vitals.client = client
        return client

    def _index_kafka(self, client: Client) -> RangeIndex | None:
        """Makes the group's stream when it is an index of what lies in Kafka."""
        if self._settings.source is None:
            return None
        from pgsluice.worker.kafka_source.range_index import begun_index  # it needs an extra that few have

        return begun_index(self._loop, client, self._settings, self._settings.source, self._stopping)

    def _follow_kafka(self, index: RangeIndex | None, wake_up: WakeUp) -> None:
        if index is None:
            return
        from pgsluice.worker.kafka_source.range_index import IndexThread

        self._closing.callback(IndexThread(index, wake_up.ring, self._stopping.end_with).stop)

    def _existing_streams(self, client: Client) -> GroupStreams:
        streams = GroupStreams(self._loop, client, self._names)
        patience = Waiting("the group's replicator, which creates the streams", streams.suspect_typo)
        self._stopping.wait_for(lambda: streams.exist() or None, patience)
        return streams

    def _take_lease(self, bucket: StateBucket) -> None:
        lease = self._vitals.lease = Lease(bucket, self._settings.name)
        self._leaving.append(lease.release)
        acquiring = lease.acquire(self._stopping.end_with)
        self._stopping.result_of(asyncio.run_coroutine_threadsafe(acquiring, self._loop.loop))

    def _checked_transformation(self, bucket: StateBucket) -> Transformation:
        """Returns rules and routes with the tables that the replicator publishes. Waits for its record of them."""
        transformation = self._transformation
        if not transformation.hash:
            return transformation
        if self._settings.source is not None:
            log.warning("rules and routes cannot be held against the tables before their changes come: Kafka does not name them")
            return transformation
        tables = self._stopping.wait_for(
            lambda: self._loop.run(load_tables(bucket)), Waiting("the group's replicator, which names its tables")
        )
        return check_transformation(transformation, tables)

    def _load_letters(self, client: Client) -> DeadLetterRegistry:
        settings = self._settings
        registry = DeadLetterRegistry(self._loop, client, self._names, settings.name, settings.max_dead_letters)
        registry.load()
        return registry

    def _replay_letters(self, registry: DeadLetterRegistry, transformation: Transformation, applied: Applied) -> Replay:
        """Replays the requested dead letters, if that is possible now."""
        settings = replace(self._settings, name=replay_name(self._settings.name))
        replay = Replay(registry, transformation, lambda: _expect_missing(self._new_sink(settings), transformation))
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
        if self._report is not None:
            self._report.go_on(applied, transformation)
            self._report.note_missed(missed_log.begin())
            return self._report
        report = self._report = ProgressReport(bucket, self._settings.name, applied, transformation)
        report.note_missed(missed_log.begin())
        self._leaving.append(report.stop)
        self._loop.run(report.start(self._stopping.end_with))
        return report

    def _listen(self, client: Client) -> WakeUp:
        wake_up = WakeUp()
        self._loop.run(wake_up.listen(client, self._names))
        self._loop.run(listen_to_steps(client, self._names, self._settings.name, self._pulse.moved))
        return wake_up

    def _find_target(self, client: Client) -> DrainTarget | None:
        """Returns None to run indefinitely."""
        until = self._settings.until_sequence
        if not until:
            return None
        patience = Waiting("the copy, or the end of the stream")
        return self._stopping.wait_for(lambda: self._loop.run(find_drain_target(client, self._names, until)), patience)

    def _check_executors(self) -> None:
        """Waits for executors of a cluster, and raises TransientError when they cannot run the tasks."""
        files = files_of(self._settings.nats)
        if isinstance(self._sink, FileReadingSink):
            files += self._sink.task_files
        checking = self._starter.submit(check_executors, self._spark, files)
        self._held.callback(self._end_jobs, checking)
        self._stopping.wait_for(lambda: wait([checking], CANCEL_INTERVAL_S).done or None, WaitingForExecutors(self._spark))
        checking.result()

    def _warm_up(self) -> None:
        """Warms up in the background, while the first batch is planned."""
        warming_up = self._starter.submit(self._spark.warm_up, WarmUp(self._settings.nats, self._settings.group))
        warming_up.add_done_callback(log_failed_warm_up)
        self._held.callback(self._end_jobs, warming_up)

    def _end_jobs(self, running: Future[None]) -> None:
        while not wait({running}, CANCEL_INTERVAL_S).done:
            self._spark.cancel_jobs()  # it may wait for executors, without a limit

    def _release_held(self) -> None:
        held, self._held = self._held, contextlib.ExitStack()
        held.close()

    async def _leave_broker(self) -> None:
        while self._leaving:
            await self._leaving.pop()()

    def _leave(self) -> None:
        try:
            self._loop.run(self._leave_broker(), CLOSE_TIMEOUT_S)
        except (TimeoutError, PgsluiceError) as error:
            log.warning("the broker did not accept the end of the lease; it expires", reason=type(error).__name__)


def _expect_missing(sink: Sink, transformation: Transformation) -> Sink:
    """Passes ``sink`` the tables in which a change may correctly meet no row, and returns it."""
    if isinstance(sink, MissingRowSink):
        sink.expect_missing(transformation.may_leave_rows_out)
    return sink
