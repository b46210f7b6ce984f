"""A worker that may apply: its streams are there, its lease is held, its sink is open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.spark.session import Spark
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.ownership import OwnershipLedger
from pgsluice.worker.batches.planner import BatchPlanner, Bell
from pgsluice.worker.batches.planning import BatchLimit
from pgsluice.worker.batches.task import PartitionTask, WarmUp
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.positions.check import Start
from pgsluice.worker.positions.missed_changes import MissedChangesLog
from pgsluice.worker.positions.report import BatchLog, ProgressReport
from pgsluice.worker.positions.target import CopyEnd, DrainTarget
from pgsluice.worker.sinks.sink import Applied, PartitionWriter, Sink


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """The parts that batches, and what comes between them, work with. ``transformation`` knows the group's tables. ``target`` is
    where a worker ends by itself; None: it goes on for ever. Spark may still be starting."""

    settings: WorkerSettings
    loop: EventLoopThread
    connection: BrokerConnection
    bell: Bell
    spark: Spark
    sink: Sink
    streams: GroupStreams
    start: Start
    target: DrainTarget | None
    transformation: Transformation
    ownership: OwnershipLedger
    registry: DeadLetterRegistry
    replay: Replay
    copy_end: CopyEnd
    report: ProgressReport
    missed_log: MissedChangesLog
    batch_log: BatchLog

    def task(self, writer: PartitionWriter) -> PartitionTask:
        """What the tasks of a batch are given, as ledger and dead letters are now. Raises TransientError."""
        owned = replace(self.loop.run(self.ownership.current()), applied_before=self.start.applied_before)
        return PartitionTask(
            self.settings.nats,
            self.settings.group,
            self.settings.name,
            writer,
            owned,
            self.registry.exclusions(owned),
            self.transformation,
            self.streams.id_prefix(),
            self.streams.is_text_unchecked(),
        )

    def keep_warm(self) -> None:
        """Runs a small job: Spark ends Python processes that had nothing to do for a minute. Raises what PySpark does."""
        self.spark.warm_up(WarmUp(self.settings.nats, self.settings.group))

    def planner(self) -> BatchPlanner:
        """How batches are cut."""
        limit = BatchLimit(self.settings.batch_messages, self.settings.batch_bytes)
        return BatchPlanner(self.connection, self.bell, limit, self.target.sequence if self.target else None)

    def note_batch(self, applied: Applied, changes: int, seconds: float) -> None:
        """To be called after each commit with the new position, the number of source changes and the seconds the batch took."""
        self.report.note(applied, changes)
        self.report.note_missed(self.missed_log.note(self.ownership.newest))
        self.batch_log.note(applied, changes, seconds)
