"""The ranges of a run, read in tasks into the group's snapshot stream: in Spark, or here when there is only one.

Everything about a range in hand (how it is cut into messages, how a repeated one finds its place, what the stream has room for)
is ``replicator.snapshot``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from nats.aio.client import Client

from pgsluice.replicator.pipelines.key_ranges import QuerySql, RowsWanted
from pgsluice.replicator.pipelines.run_records import RangeRecord, RunRecord
from pgsluice.replicator.retention import RunningCopyRetention
from pgsluice.replicator.snapshot.copy_task import CopyProcess
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeOutcome, RangeRequest
from pgsluice.replicator.snapshot.export import SnapshotKeeper
from pgsluice.replicator.snapshot.held_ranges import HeldRanges
from pgsluice.replicator.snapshot.plan import PageRange
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.snapshot.schedule import Job, Schedule, ScheduleRun
from pgsluice.replicator.snapshot.stream_share import share_of_stream, size_of
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import SnapshotStream, StreamState
from pgsluice.shared.config.settings import PipelineSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table

RETRY_PAUSES = Pauses(1.0, 4.0)
RUN_AGAIN = "run the pipeline again: it goes on where it ended"

_RANGE_BYTES = 1  # nothing is known of a range's size: each is a task of its own


@dataclass(frozen=True, slots=True)
class PublishingRun:
    """``snapshot_id`` is under which all runs of the pipeline are published; ``ledger_revision`` that of the ledger's record
    which says so."""

    settings: PipelineSettings
    client: Client
    query: QuerySql
    run: RunRecord
    snapshot_id: str
    system_id: str
    ledger_revision: int

    @property
    def _names(self) -> GroupNames:
        return GroupNames(self.query.pipeline.group)

    async def publish_begin(self) -> None:
        """The message that all rows of earlier runs, and of earlier attempts at this one, are applied before."""
        names, oid = self._names, self.query.table.oid
        token = f"{self.snapshot_id}-{self.run.number}-{self.run.attempt}"
        publisher = RangePublisher(
            self.client,
            SnapshotStream(self.client, names),
            names.snapshot_begin_subject(token, oid),
            f"{self.system_id}/{token}/{oid}/begin/",
            self.settings.retry.copied_rows,
        )
        headers = SnapshotHeaders(
            snapshot=self.snapshot_id,
            oid=oid,
            attempt=1,
            range_number=None,
            number=1,
            rows=0,
            range_rows=0,
            range_bytes=0,
            is_range_end=False,
            ledger_revision=self.ledger_revision,
            run=self.run.number,
        )
        try:
            await publisher.publish(headers, encode_table(self.query.table))
            await publisher.flush()
        finally:
            await publisher.close()

    async def copy(self, keeper: SnapshotKeeper, ranges: Sequence[RangeRecord], wanted: RowsWanted) -> None:
        """Returns when the stream holds all rows of ``ranges``. Raises what the last attempt at one of them met, or
        SnapshotGoneError."""
        pipeline, stream = self.query.pipeline, SnapshotStream(self.client, self._names)
        state = await stream.state()
        assert state is not None
        parameters = self._parameters(keeper, state)
        requests = [self._request(each, wanted) for each in ranges]
        held = HeldRanges(self._names, self.snapshot_id, state.last_sequence)
        retention = RunningCopyRetention(stream, StateBucket(self.client, self._names), held)
        progress, tasks = _Progress(), parameters.share.tasks
        schedule = Schedule([requests], tasks, _RANGE_BYTES, parameters.share.ranges)
        with self._running(parameters, len(requests)) as (job, threads):
            reading = ScheduleRun(schedule, job, tasks, threads, progress, RETRY_PAUSES, held, pipeline.retries + 1, RUN_AGAIN)
            await run_until_first([reading.run(), keeper.watch(), retention.run()])
        if progress.error is not None:
            raise progress.error

    def _parameters(self, keeper: SnapshotKeeper, state: StreamState) -> CopyParameters:
        pipeline = self.query.pipeline
        share = share_of_stream(self._names.snapshot_stream, size_of(state), pipeline.tasks, self.client.max_payload)
        return CopyParameters(
            group=pipeline.group,
            source=self.settings.source,
            nats=self.settings.nats,
            system_id=self.system_id,
            snapshot_name=keeper.snapshot.name,
            snapshot_id=self.snapshot_id,
            share=share,
            pauses=self.settings.retry.copied_rows,
            session=pipeline.session,
        )

    def _request(self, each: RangeRecord, wanted: RowsWanted) -> RangeRequest:
        names = [column.name for column in self.query.table.columns]
        pages = PageRange(
            table_oid=self.query.table.oid,
            number=each.number,
            name=f"pipeline '{self.query.pipeline.name}'",
            relation_oid=0,
            filenode=0,
            size_bytes=_RANGE_BYTES,
            lock="SELECT",
            query=self.query.copy(wanted, each),
        )
        fields = tuple(names.index(column) for column in self.query.pipeline.cursor)
        head = encode_table(self.query.table)
        return RangeRequest(pages, attempt=1, head=head, ledger_revision=self.ledger_revision, key_fields=fields)

    @contextmanager
    def _running(self, parameters: CopyParameters, ranges: int) -> Iterator[tuple[Job, ThreadPoolExecutor]]:
        """What reads: a range alone is read faster than Spark starts."""
        if ranges > 1:
            from pgsluice.replicator.pipelines.spark_tasks import running_spark

            with running_spark(self.settings, parameters, self.query.pipeline) as running:
                yield running
            return
        process, threads = CopyProcess(), ThreadPoolExecutor(1, "pgsluice-pipeline")
        try:
            yield partial(_copy_here, process, parameters), threads
        finally:
            threads.submit(process.close)
            threads.shutdown()


def _copy_here(process: CopyProcess, parameters: CopyParameters, requests: Sequence[RangeRequest]) -> list[RangeOutcome]:
    return [process.copy(parameters, request) for request in requests]


class _Progress:
    """The first error that ended the run; the rest is in the stream."""

    def __init__(self) -> None:
        self.error: PgsluiceError | None = None

    def is_copying(self, oid: int) -> bool:
        return self.error is None

    def note_done(self, outcome: RangeOutcome) -> None:
        pass

    def note_errored(self, oid: int, error: PgsluiceError) -> None:
        self.error = self.error or error
