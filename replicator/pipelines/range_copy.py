"""The ranges of a run, read in tasks into the group's snapshot stream: in Spark, or here when only one is read at a time.

Everything about a current range (how it is cut into messages, how a repeated one finds its place, what the stream has
room for) is ``replicator.snapshot``'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from nats.aio.client import Client

from pgsluice.replicator.pipelines.key_ranges import QuerySql, RowsWanted
from pgsluice.replicator.pipelines.pipeline import WriteMode
from pgsluice.replicator.pipelines.run_retries import PAUSES
from pgsluice.replicator.retention import RunningCopyRetention
from pgsluice.replicator.snapshot.copy_here import copying_here
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeOutcome, RangeRequest, RowSteps
from pgsluice.replicator.snapshot.dead_rows import RowLetters
from pgsluice.replicator.snapshot.export import SnapshotKeeper
from pgsluice.replicator.snapshot.held_ranges import HeldRanges
from pgsluice.replicator.snapshot.plan import PageRange
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.snapshot.schedule import Job, Schedule, ScheduleRun
from pgsluice.replicator.snapshot.stream_share import share_of_stream, size_of
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import SnapshotStream, StreamState
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.pipelines.pipeline_settings import PipelineSettings
from pgsluice.shared.pipelines.run_records import RangeRecord, RunRecord
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.run_mark import ALL_ROWS, RunMark
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table
from pgsluice.shared.wire.table import Table

RUN_AGAIN = "run the pipeline again: it continues from its position"

_KEYS_IN_A_MESSAGE = 200  # keys of an index, which have 2,704 bytes at most
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_RANGE_BYTES = 1  # a range's size is unknown: each is a separate task


@dataclass(frozen=True, slots=True)
class CopiedRanges:
    """``rows`` counts rows of ranges that are whole in the stream; rows of ``unreadable`` ranges may be there, too."""

    rows: int
    unreadable: tuple[RangeOutcome, ...]


@dataclass(frozen=True, slots=True)
class PublishingRun:
    """``table`` is the published table: the query's, or the result of ``steps``. All runs of the pipeline are published
    under ``snapshot_id``; ``ledger_revision`` is the revision of the ledger's record about it."""

    settings: PipelineSettings
    client: Client
    query: QuerySql
    table: Table
    steps: RowSteps | None
    run: RunRecord
    snapshot_id: str
    system_id: str
    ledger_revision: int

    @property
    def _names(self) -> GroupNames:
        return GroupNames(self.query.pipeline.group)

    async def publish_begin(self) -> None:
        """Publishes the message that all rows of earlier runs, and of earlier attempts at this one, are applied before."""
        await self._publish_fence(self.mark, "")

    async def publish_end(self) -> None:
        """Publishes the message that all rows of this run are applied before: from then on they count, if they are to
        replace others."""
        await self._publish_fence(replace(self.mark, ends=True), "-end")

    @property
    def mark(self) -> RunMark:
        """The mark of all messages of the run."""
        pipeline, names = self.query.pipeline, [column.name for column in self.table.columns]
        deletes = names.index(pipeline.deleted_column) + 1 if pipeline.deleted_column else None
        deletes = ALL_ROWS if self.run.reconciles else deletes
        replaces = pipeline.write is WriteMode.REPLACE
        return RunMark(self.run.number, self.run.version, replaces=replaces, deletes=deletes)

    async def _publish_fence(self, mark: RunMark, suffix: str) -> None:
        names, oid = self._names, self.table.oid
        token = f"{self.snapshot_id}-{self.run.number}-{self.run.attempt}{suffix}"
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
            mark=mark,
        )
        try:
            await publisher.publish(headers, encode_table(self.table))
            await publisher.flush()
        finally:
            await publisher.close()

    async def copy(
        self, keeper: SnapshotKeeper, ranges: Sequence[RangeRecord], wanted: RowsWanted, *, are_parts: bool = False
    ) -> CopiedRanges:
        """Returns when the stream holds all of ``ranges``, except unreadable ones; if rows replace all others that
        fails, too. ``are_parts``: of a range that could not be read. Raises the error of the last attempt at one of
        them, or SnapshotGoneError."""
        pipeline, stream = self.query.pipeline, SnapshotStream(self.client, self._names)
        state = await stream.state()
        assert state is not None
        parameters = self._parameters(keeper, state)
        requests = [self._request(each, wanted) for each in ranges]
        held = HeldRanges(self._names, self.snapshot_id, state.last_sequence)
        retention = RunningCopyRetention(stream, StateBucket(self.client, self._names), held)
        progress, tasks = _Progress(), 1 if are_parts else parameters.share.tasks
        most_unreadable = 0 if pipeline.write is WriteMode.REPLACE else pipeline.max_dead_letters
        attempts = pipeline.retries + 1
        timeouts = 1 if are_parts else attempts
        schedule = Schedule([requests], tasks, _RANGE_BYTES, parameters.share.ranges)
        async with self._running(parameters, 1 if are_parts else len(requests)) as (job, threads):
            reading = ScheduleRun(
                schedule, job, tasks, threads, progress, PAUSES, held, attempts, RUN_AGAIN, most_unreadable, timeouts
            )
            await run_until_first([reading.run(), keeper.watch(), retention.run()])
        if 0 < most_unreadable < len(reading.unreadable):
            raise self.row_letters().too_many(unreadable_error(reading.unreadable[-1]).fact)
        if progress.error is not None:
            raise progress.error
        return CopiedRanges(progress.rows, tuple(reading.unreadable))

    def row_letters(self) -> RowLetters:
        """Returns the dead letters for rows of the run that cannot be read."""
        pipeline = self.query.pipeline
        name, run, most = f"pipeline '{pipeline.name}'", self.run.number, pipeline.max_dead_letters
        return RowLetters(self.client, self._names, name, self.snapshot_id, run, most)

    async def publish_deletes(self, keys: Sequence[tuple[str, ...]]) -> None:
        """Returns when the stream holds these keys of rows to be deleted, as the run's one range."""
        [each], oid = self.run.ranges, self.query.table.oid
        subject = self._names.snapshot_range_subject(self.snapshot_id, oid, each.number)
        prefix = f"{self.system_id}/{self.snapshot_id}/{oid}/{each.number}/"
        publisher = RangePublisher(self.client, SnapshotStream(self.client, self._names), subject, prefix)
        head, rows, size = encode_table(self.query.table), 0, 0
        try:
            for number, first in enumerate(range(0, len(keys), _KEYS_IN_A_MESSAGE), 1):
                lines = [self._line_of(key) for key in keys[first : first + _KEYS_IN_A_MESSAGE]]
                data, rows = b"".join(lines), rows + len(lines)
                size += len(data)
                headers = SnapshotHeaders(
                    snapshot=self.snapshot_id,
                    oid=oid,
                    attempt=1,
                    range_number=each.number,
                    number=number,
                    rows=len(lines),
                    range_rows=rows,
                    range_bytes=size,
                    is_range_end=rows == len(keys),
                    ledger_revision=self.ledger_revision,
                    mark=self.mark,
                )
                await publisher.publish(headers, head + data)
            await publisher.flush()
        finally:
            await publisher.close()

    def _line_of(self, key: tuple[str, ...]) -> bytes:
        """Returns a row of COPY text without what is not of its key."""
        by_name = dict(zip(self.query.pipeline.key, key, strict=True))
        return b"\t".join(_field(by_name.get(column.name)) for column in self.query.table.columns) + b"\n"

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
            steps=self.steps,
            most_dead=pipeline.max_dead_letters,
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
        head = encode_table(self.table)
        count = "" if each.rows is None else self.query.counts(wanted, [each])
        return RangeRequest(pages, 1, head, self.ledger_revision, key_fields=fields, mark=self.mark, rows=each.rows, count=count)

    @asynccontextmanager
    async def _running(self, parameters: CopyParameters, ranges: int) -> AsyncIterator[tuple[Job, ThreadPoolExecutor]]:
        """Gives what reads. A thread of this process reads a single range before Spark would have started."""
        if ranges > 1 and self.query.pipeline.tasks > 1:
            from pgsluice.replicator.pipelines.spark_tasks import running_spark

            with running_spark(self.settings, parameters, self.query.pipeline) as running:
                yield running
            return
        async with copying_here() as here:
            yield here.job(parameters), here.threads


def unreadable_error(outcome: RangeOutcome) -> PgsluiceError:
    """Returns the error of the range's last attempt."""
    assert outcome.error is not None
    return outcome.error


def _field(text: str | None) -> bytes:
    return rb"\N" if text is None else text.translate(_ESCAPES).encode()


class _Progress:
    """The first error that ended the run; the rest is in the stream."""

    def __init__(self) -> None:
        self.error: PgsluiceError | None = None
        self.rows = 0

    def is_copying(self, oid: int) -> bool:
        return self.error is None

    def note_done(self, outcome: RangeOutcome) -> None:
        self.rows += outcome.rows

    def note_errored(self, oid: int, error: PgsluiceError) -> None:
        self.error = self.error or error
