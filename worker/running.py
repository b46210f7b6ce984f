"""A worker that may apply: its streams exist, its lease is held, its sink is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.broker.worker_records import BatchRecord
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.spark.session import Spark
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.change_reader import ChangeReader
from pgsluice.worker.batches.ownership import NEVER_COPIED, Ownership, OwnershipLedger
from pgsluice.worker.batches.planner import BatchPlanner, Copies, PlannedBatch, WakeUp
from pgsluice.worker.batches.planning import BatchLimit
from pgsluice.worker.batches.rereading import Rereading
from pgsluice.worker.batches.task import PartitionTask, WarmUp
from pgsluice.worker.dead_letters.filter import DiscardingWriter
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.definitions.arrivals import read_arrivals
from pgsluice.worker.definitions.worker_definitions import WorkerDefinitions
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.metrics.batch_figures import BatchFigures
from pgsluice.worker.metrics.worker_metrics import WorkerMetrics
from pgsluice.worker.positions.check import Start
from pgsluice.worker.positions.missed_changes import MissedChangesLog, is_expected
from pgsluice.worker.positions.report import BatchLog, ProgressReport
from pgsluice.worker.positions.target import CopyEnd, DrainTarget
from pgsluice.worker.sinks.abilities import ComparingSink, EventSink, TwoLaneSink, WholeTransactionSink
from pgsluice.worker.sinks.sink import Applied, Delivery, Lane, PartitionWriter, Sink


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """The parts that batches, and what comes between them, work with. ``transformation`` knows the group's tables.
    ``target`` is where a worker ends; None: it runs indefinitely. Spark may still be starting. ``paused_tables``
    returns the currently paused tables."""

    settings: WorkerSettings
    loop: EventLoopThread
    connection: BrokerConnection
    wake_up: WakeUp
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
    definitions: WorkerDefinitions
    batch_log: BatchLog
    pulse: Pulse
    metrics: WorkerMetrics
    paused_tables: Callable[[], frozenset[int]] = frozenset
    rereading: Rereading = field(default_factory=Rereading)
    """Used by a sink that reads the stream again."""

    def judge_definitions(self, plan: PlannedBatch, owned: Ownership) -> None:
        """Judges definitions before a batch is written. Raises TerminalError when an operator must act before one of
        them, TransientError."""
        if plan.definitions:
            reader = ChangeReader(self.connection, self.streams.id_prefix())
            self.definitions.judge(read_arrivals(reader, plan.definitions, owned))

    def task(self, writer: PartitionWriter, owned: Ownership) -> PartitionTask:
        """Returns the parameters of a batch's tasks, with the current dead letters."""
        task = self._task(writer, owned)
        if isinstance(self.sink, EventSink):
            self.rereading.use_task(task)
        return task

    def prepare_rereading(self) -> None:
        """Prepares rereading; call it before the first batch."""
        if isinstance(self.sink, EventSink):
            self.rereading.use_task(self._task(DiscardingWriter(), NEVER_COPIED))
            self.sink.reread_by(self.rereading)

    def note_held(self) -> None:
        """Reports the messages that the sink needs again."""
        if isinstance(self.sink, EventSink):
            self.report.note_held(self.sink.held())

    def _task(self, writer: PartitionWriter, owned: Ownership) -> PartitionTask:
        return PartitionTask(
            self.settings.nats,
            self.settings.group,
            self.settings.name,
            writer,
            owned,
            self.registry.exclusions(replace(owned, lane=Lane.CHANGES, cohort=frozenset())),
            self.transformation,
            self.streams.id_prefix(),
            self.streams.is_text_unchecked() or self.settings.source is not None,
            self.settings.metrics.are_wanted,
            self.settings.source,
        )

    def owned(self, plan: PlannedBatch) -> Ownership:
        """Returns the ownership of a batch's changes, by the current ledger. Raises TransientError."""
        current = self.loop.run(self.ownership.current())
        if isinstance(self.sink, EventSink) and plan.lane is not Lane.COPIED:
            current = NEVER_COPIED
        return replace(
            current,
            applied_before=self.start.of(plan.lane).applied_before,
            lane=plan.lane,
            cohort=plan.cohort,
            borders=dict(plan.start.borders),
        )

    def keep_warm(self) -> None:
        """Runs a small job: Spark ends Python processes that had nothing to do for a minute. Raises what PySpark does."""
        self.spark.warm_up(WarmUp(self.settings.nats, self.settings.group))

    def planner(self) -> BatchPlanner:
        """Returns the planner of batches."""
        limit = BatchLimit(self.settings.batch_messages, self.settings.batch_bytes)
        copies = Copies(
            unready=lambda sequence: self.loop.run(self.ownership.unready(sequence)),
            is_finished=self.copy_end.is_handled,
            two_lanes=isinstance(self.sink, TwoLaneSink),
            paused=self.paused_tables,
        )
        drain_to = self.target.sequence if self.target else None
        is_whole, is_streamed = isinstance(self.sink, WholeTransactionSink), self.sink.delivery is Delivery.STREAMED
        return BatchPlanner(
            self.connection, self.wake_up, limit, drain_to, copies, whole_transactions=is_whole, streamed=is_streamed
        )

    def note_paused_tables(self) -> None:
        """Reports the paused tables; call it between batches: later plans hold their changes back."""
        if isinstance(self.sink, TwoLaneSink):
            self.report.note_paused_tables(self.paused_tables())

    def look_for_ready_tables(self) -> None:
        """Checks whether tables became ready. Call it between batches: a table can become ready without a batch. Does
        nothing when all tables are ready. Raises TransientError."""
        if self.report.waits_for_tables:
            published, stream = self.streams.published()
            self.report.note_tables(self.loop.run(self.ownership.after_copy()), published, stream)

    def note_batch(self, applied: Applied, figures: BatchFigures, batch: BatchRecord) -> None:
        """Notes a batch; call it after each commit with the new position and the batch's figures."""
        self.metrics.note_batch(figures)
        self.note_held()
        if isinstance(self.sink, ComparingSink):
            self.report.note_unchanged(self.sink.unchanged())
        self.report.note_tables(self.ownership.content)
        self.report.note(applied, batch)
        missed = self.missed_log.note(self.ownership.newest)
        self.report.note_missed(missed)
        self.metrics.note_missed([each for each in missed if not is_expected(each, self.transformation)])
        self.batch_log.note(applied, figures.changes, batch.seconds)
        self.pulse.progressed()
