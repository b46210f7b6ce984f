"""One run of a pipeline, from the look at open transactions to the checkpoint: this module names the steps, others know how.

1. The source is locked against another run of the pipeline, for as long as this one is connected.
2. It is asked which transactions are open (``late_rows``), then a snapshot is exported, which all that follows reads under.
3. The server describes the query; what is left of an earlier run is taken up (``resumption``), or a new one is planned.
4. The plan is stored, then the ledger says whose rows come, then a begin message and the ranges go into the snapshot stream.
5. When JetStream has all of them the checkpoint moves.

A run that ends anywhere between leaves its record, and whatever it published counts: the next one goes on from there.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from nats.aio.client import Client

from pgsluice.replicator.pipelines.key_ranges import QuerySql, RowsWanted
from pgsluice.replicator.pipelines.late_rows import OpenTransactions, border_behind, is_time, look, measured_border
from pgsluice.replicator.pipelines.pipeline import Pipeline, RunMode, WriteMode
from pgsluice.replicator.pipelines.query_reader import Border, QueryReader
from pgsluice.replicator.pipelines.range_copy import PublishingRun
from pgsluice.replicator.pipelines.resumption import Resumption
from pgsluice.replicator.pipelines.run_records import (
    Key,
    PipelineRecord,
    RangeRecord,
    RunRecord,
    RunState,
    load_pipeline,
    store_pipeline,
)
from pgsluice.replicator.retention import FinishedCopyRetention, copied_by_all
from pgsluice.replicator.snapshot.export import SnapshotKeeper, begin, import_snapshot
from pgsluice.replicator.snapshot.preparation import lock_group
from pgsluice.replicator.source.connection import connect as connect_source
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.broker.published_tables import UNCHECKED, store_tables
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.settings import PipelineSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import format_lsn

LOOK_INTERVAL_S = 0.2

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run would read: for people. ``ranges`` is 0 when no row is wanted. ``is_resumed``: it takes up what is left of a
    run, whose rows and ranges these are."""

    is_full: bool
    is_resumed: bool
    rows: int
    ranges: int
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Planned:
    """``run`` is not in ``record`` yet, or as it was left there."""

    record: PipelineRecord
    run: RunRecord


def run(settings: PipelineSettings, pipeline: Pipeline, *, full: bool, wait: bool) -> RunRecord:
    """The run as it ended: all rows are in the stream then, with ``wait`` they are applied by every worker. Raises PgsluiceError
    with what hindered it."""
    return asyncio.run(_run(settings, pipeline, full=full, wait=wait))


def plan(settings: PipelineSettings, pipeline: Pipeline, *, full: bool) -> RunPlan:
    """What ``run`` would do now; nothing is written anywhere."""
    return asyncio.run(_plan(settings, pipeline, full=full))


async def _plan(settings: PipelineSettings, pipeline: Pipeline, *, full: bool) -> RunPlan:
    async with connected(settings.nats, f"pgsluice run {pipeline.name}") as client, AsyncExitStack() as closing:
        opened = await _Opened.open(settings, pipeline, client, closing)
        planned = await opened.plan(full=full)
        ranges = len(planned.run.ranges)
        columns = tuple((column.name, column.type_name) for column in opened.query.table.columns)
        return RunPlan(planned.run.is_full, planned.run.attempt > 1, planned.run.rows, ranges, columns)


async def _run(settings: PipelineSettings, pipeline: Pipeline, *, full: bool, wait: bool) -> RunRecord:
    async with connected(settings.nats, f"pgsluice run {pipeline.name}") as client:
        async with AsyncExitStack() as closing:
            source = await Source.connect(settings.source)
            closing.push_async_callback(source.close)
            await lock_group(source, pipeline.group)
            await _make_streams(settings, pipeline, client)
            opened = await _Opened.open(settings, pipeline, client, closing)
            ended = await opened.run(full=full)
        if wait:
            await _wait_for_workers(client, GroupNames(pipeline.group), ended.last_sequence)
        return ended


async def _make_streams(settings: PipelineSettings, pipeline: Pipeline, client: Client) -> None:
    """Raises UsageError when a replicator publishes into the group."""
    names = GroupNames(pipeline.group)
    bucket, stream = StateBucket(client, names), SnapshotStream(client, names)
    is_foreign = (
        await bucket.exists() and await load_pipeline(bucket) is None and await Ledger(bucket).load_snapshot() is not None
    )
    if is_foreign or await ChangeStream(client, names).state() is not None:
        raise UsageError(
            f"group {names.group!r} is a replicator's", f"give pipeline '{pipeline.name}' a group of its own ('group: …')"
        )
    await stream.ensure(settings.stream)
    await bucket.ensure(settings.stream)
    record = await load_pipeline(bucket)
    if record is not None and record.pipeline != pipeline.name:
        raise UsageError(
            f"group {names.group!r} is that of pipeline '{record.pipeline}'", "give each pipeline a group of its own"
        )
    if record is None or record.left is None:
        await FinishedCopyRetention(stream, bucket, settings.stream.retention_s).purge()


@dataclass(slots=True)
class _Opened:
    """A pipeline whose snapshot is open."""

    settings: PipelineSettings
    client: Client
    transactions: OpenTransactions
    keeper: SnapshotKeeper
    reader: QueryReader
    query: QuerySql
    system_id: str
    database: str
    encoding: str

    @classmethod
    async def open(cls, settings: PipelineSettings, pipeline: Pipeline, client: Client, closing: AsyncExitStack) -> _Opened:
        source = await Source.connect(settings.source)
        try:
            facts, system_id, encoding = await source.facts(), await source.system_id(), source.encoding
            if encoding == UNCHECKED:
                raise TerminalError("the source's encoding is SQL_ASCII", "pipelines need a database that knows its encoding")
            transactions = await look(source)
        finally:
            await source.close()
        keeper = await SnapshotKeeper.export(settings.source)
        closing.push_async_callback(keeper.close)
        connection = await connect_source(settings.source)
        closing.push_async_callback(connection.close)
        reader = QueryReader(connection, pipeline)
        await begin(connection)
        await import_snapshot(connection, keeper.snapshot.name)
        query = QuerySql(pipeline, await reader.describe())
        return cls(settings, client, transactions, keeper, reader, query, system_id, facts.database, encoding)

    @property
    def pipeline(self) -> Pipeline:
        return self.query.pipeline

    @property
    def names(self) -> GroupNames:
        return GroupNames(self.pipeline.group)

    @property
    def bucket(self) -> StateBucket:
        return StateBucket(self.client, self.names)

    async def run(self, *, full: bool) -> RunRecord:
        planned = await self._without_left_ranges(await self.plan(full=full))
        record, run = planned.record.with_run(planned.run), planned.run
        await store_pipeline(self.bucket, record)
        try:
            if run.ranges or run.number == 1:  # the first makes the target's table, rows or not
                await self._publish(planned)
        except PgsluiceError as error:
            await self._note_end(record, run, RunState.FAILED, error.fact)
            raise
        except asyncio.CancelledError:
            await self._note_end(record, run, RunState.INTERRUPTED)
            raise
        record = record.finished(run, await self._end_in_ledger())
        await store_pipeline(self.bucket, record)
        log.info("run is finished", pipeline=self.pipeline.name, run=run.number, rows=run.rows, full=run.is_full)
        assert record.newest is not None
        return record.newest

    async def plan(self, *, full: bool) -> _Planned:
        """What is to be read. Changes nothing."""
        fingerprint = self.pipeline.fingerprint(self.query.table, f"{self.system_id}/{self.database}")
        record = await load_pipeline(self.bucket) if await self.bucket.exists() else None
        if record is None:
            record = PipelineRecord(self.pipeline.name, fingerprint, f"pipeline-{secrets.token_hex(4)}")
        elif record.fingerprint != fingerprint and not full:
            raise UsageError(
                f"pipeline '{self.pipeline.name}' is not what it was when it ran last: its query, columns, key, target or source",
                "run it with --full: it reads all rows again, and removes none at the target",
            )
        if not self.pipeline.skips_nulls:
            await self.reader.check_nulls(self.query)
        if record.left is not None and not full:
            left = record.left
            run = replace(left, state=RunState.READING, attempt=left.attempt + 1, finished_at="", reason="")
            return _Planned(record, run)
        is_full = full or self.pipeline.mode is RunMode.FULL or not record.checkpoint
        return await self._begin(replace(record, fingerprint=fingerprint), is_full=is_full)

    async def _begin(self, record: PipelineRecord, *, is_full: bool) -> _Planned:
        pipeline, border = self.pipeline, ""
        if pipeline.incremental_key:
            border = await measured_border(self.reader, self.query, self.transactions, record.reread_from)
        wanted = RowsWanted() if is_full else await self._rows_since(record)
        if pipeline.write is WriteMode.APPEND:  # rows that may come late come in a later run, with those that do
            wanted = replace(wanted, before=border)
        borders = await self.reader.borders(self.query, wanted)
        last = await self._furthest(borders, () if is_full else record.checkpoint)
        if pipeline.incremental_key and last and not is_time(self.query):
            border = await border_behind(self.reader, self.query, last[0])
        run = RunRecord(
            number=1 if record.newest is None else record.newest.number + 1,
            state=RunState.READING,
            is_full=is_full,
            started_at=now(),
            rows=borders[-1].rows if borders else 0,
            after=wanted.after,
            reread_from=wanted.reread_from,
            before=wanted.before,
            last=last,
            border=border,
            ranges=_ranges(borders, record.next_range),
        )
        return _Planned(record, run)

    async def _rows_since(self, record: PipelineRecord) -> RowsWanted:
        """Those behind the checkpoint, and from an earlier place on where some may have come late."""
        rereads = record.reread_from and self.pipeline.write is WriteMode.MERGE
        if rereads and await self.reader.value(self.query.is_at_or_before(record.reread_from, record.checkpoint[0])):
            return RowsWanted(reread_from=record.reread_from)
        return RowsWanted(after=record.checkpoint)

    async def _furthest(self, borders: list[Border], checkpoint: Key) -> Key:
        """The checkpoint after this run, which never goes back."""
        if not borders or (checkpoint and not await self.reader.value(self.query.is_after(borders[-1].key, checkpoint))):
            return checkpoint
        return borders[-1].key

    async def _without_left_ranges(self, planned: _Planned) -> _Planned:
        """Ends the ranges of a run that was not finished. Those of the plan have numbers then that no range had."""
        record, run, left = planned.record, planned.run, planned.record.left
        ranges: list[RangeRecord] = list(run.ranges)
        if left is not None:
            resumption = Resumption(self.client, self.names, self.system_id, self.query.table)
            remaining = await resumption.ranges_left(record.snapshot, left)
            if run.number == left.number:
                ranges = remaining
                log.info("taking up a run", pipeline=self.pipeline.name, run=run.number, ranges=len(ranges))
            else:
                record = record.with_run(left.ended(RunState.ABANDONED, left.last_sequence, left.reason))
        ranges = [replace(each, number=number) for number, each in enumerate(ranges, record.next_range)]
        record = replace(record, next_range=record.next_range + len(ranges))
        return _Planned(record, replace(run, ranges=tuple(ranges)))

    async def _publish(self, planned: _Planned) -> None:
        run, record = planned.run, planned.record
        revision = await self._begin_in_ledger(record)
        publishing = PublishingRun(self.settings, self.client, self.query, run, record.snapshot, self.system_id, revision)
        await publishing.publish_begin()
        if run.ranges:
            await publishing.copy(self.keeper, run.ranges, RowsWanted(run.after, run.reread_from, run.before))

    async def _begin_in_ledger(self, record: PipelineRecord) -> int:
        """What workers look up before they apply rows; the revision of the table's record. Raises TerminalError when the stream
        is not the one that the pipeline published into."""
        ledger, table = Ledger(self.bucket), self.query.table
        state, known = await SnapshotStream(self.client, self.names).state(), await ledger.load_snapshot()
        created = "" if state is None else state.created
        if known is not None and known.stream_created != created:
            raise TerminalError(
                f"stream {self.names.snapshot_stream} was made anew since the pipeline ran last",
                f"run 'pgsluice drop --nats-only --group {self.names.group}', and the pipeline again",
            )
        await store_tables(self.bucket, [table], self.encoding)
        lsn = format_lsn(self.keeper.snapshot.lsn)
        await ledger.store_snapshot(
            SnapshotRecord(
                id=record.snapshot,
                lsn=lsn,
                state=CopyState.RUNNING,
                mode=CopyMode.COPY,
                started_at=now(),
                finished_at="",
                last_sequence=0,
                system_id=self.system_id,
                database=self.database,
                stream_created=created,
            )
        )
        copied = TableRecord(table.oid, table.schema, table.name, Phase.DATA_SYNC, now(), record.snapshot, lsn, began_at=now())
        return await ledger.store_table(copied)

    async def _end_in_ledger(self) -> int:
        """However the run ended: what is published counts. Where the stream ends."""
        ledger, state = Ledger(self.bucket), await SnapshotStream(self.client, self.names).state()
        snapshot, last_sequence = await ledger.load_snapshot(), 0 if state is None else state.last_sequence
        if snapshot is None or snapshot.state is CopyState.FINISHED:
            return last_sequence
        for record in (await ledger.load()).tables.values():
            if record.phase is Phase.DATA_SYNC:
                await ledger.store_table(record.enter(Phase.FINISHED_COPY, last_sequence=last_sequence))
        ended = replace(snapshot, state=CopyState.FINISHED, finished_at=now(), last_sequence=last_sequence)
        await ledger.store_snapshot(ended)
        return last_sequence

    async def _note_end(self, record: PipelineRecord, run: RunRecord, state: RunState, reason: str = "") -> None:
        """As far as the broker answers: without it, the run is seen to be left."""
        with suppress(PgsluiceError):
            await store_pipeline(self.bucket, record.with_run(run.ended(state, await self._end_in_ledger(), reason)))


def _ranges(borders: list[Border], first_number: int) -> tuple[RangeRecord, ...]:
    before: Key = ()
    ranges = []
    for number, border in enumerate(borders, first_number):
        ranges.append(RangeRecord(number, before, border.key))
        before = border.key
    return tuple(ranges)


async def _wait_for_workers(client: Client, names: GroupNames, last_sequence: int) -> None:
    """Returns when every worker of the group has applied that message; waits for the first one, too."""
    bucket, is_told = StateBucket(client, names), False
    while await copied_by_all(bucket) < last_sequence:
        if not is_told:
            log.info("waiting for the group's workers", group=names.group)
            is_told = True
        await asyncio.sleep(LOOK_INTERVAL_S)
