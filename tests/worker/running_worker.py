"""A worker that may apply, without the steps of its start: what batches, and what comes between them, are tested with."""

from __future__ import annotations

from nats.aio.client import Client

from pgsluice.rules.transformation import UNTRANSFORMED
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.ownership import OwnershipLedger
from pgsluice.worker.batches.planner import WakeUp
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.definitions.worker_definitions import WorkerDefinitions
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.metrics.worker_metrics import WorkerMetrics
from pgsluice.worker.positions.missed_changes import MissedChangesLog
from pgsluice.worker.positions.report import BatchLog, ProgressReport
from pgsluice.worker.positions.target import CopyEnd
from pgsluice.worker.running import RunningWorker
from pgsluice.worker.sinks.sink import Sink

MOST_DEAD_LETTERS = 10


def running_worker(settings: WorkerSettings, loop: EventLoopThread, client: Client, spark: Spark, sink: Sink) -> RunningWorker:
    """Opens ``sink``, and goes on where that is. Nothing changes the rows on the way, and it has no target."""
    names = GroupNames(settings.group)
    bucket, streams = StateBucket(client, names), GroupStreams(loop, client, names)
    registry = DeadLetterRegistry(loop, client, names, settings.name, MOST_DEAD_LETTERS)
    start = streams.find_start(sink.open())
    return RunningWorker(
        settings=settings,
        loop=loop,
        connection=BrokerConnection(names, loop, client),
        wake_up=WakeUp(),
        spark=spark,
        sink=sink,
        streams=streams,
        start=start,
        target=None,
        transformation=UNTRANSFORMED,
        ownership=OwnershipLedger(bucket),
        registry=registry,
        replay=Replay(registry, UNTRANSFORMED, lambda: sink),
        copy_end=CopyEnd(bucket),
        report=ProgressReport(bucket, settings.name, start.applied),
        missed_log=MissedChangesLog(sink, UNTRANSFORMED),
        definitions=WorkerDefinitions(loop, bucket, settings, sink),
        batch_log=BatchLog(),
        pulse=Pulse(),
        metrics=WorkerMetrics(settings.metrics.tables),
    )
