"""One run of a pipeline, from the check of open transactions to the checkpoint: this module names the steps, others know how.

1. The source is locked against another run of the pipeline, for as long as this one is connected.
2. Open transactions are read (``late_rows``). The query's tables are locked against rewriting, and then
   a snapshot is exported, which all that follows reads under.
3. The server describes the query; what is left of an earlier run is taken up (``resumption``), or a new one is planned
   (``run_planning``).
4. The plan is stored, then the ledger records whose rows come, then a begin message and the ranges (``run_ranges``) go into the
   snapshot stream.
5. When JetStream has all messages the checkpoint moves.

A run that ends anywhere between leaves its record, and whatever it published stays valid: the next one continues from
there. It ends between two messages when a user requests it (``wish_watch``).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from nats.aio.client import Client

from pgsluice.replicator.pipelines.key_ranges import QuerySql, RowsWanted
from pgsluice.replicator.pipelines.late_rows import OpenTransactions, look, measured_border
from pgsluice.replicator.pipelines.pipeline import Pipeline, WriteMode
from pgsluice.replicator.pipelines.pipeline_group import (
    RunOrigin,
    begin_in_ledger,
    end_in_ledger,
    lock_run,
    make_streams,
    unlock_run,
    wait_for_workers,
    watch_lock,
    while_locked,
)
from pgsluice.replicator.pipelines.query_reader import QueryReader, server_work_mem_kb
from pgsluice.replicator.pipelines.range_copy import PublishingRun
from pgsluice.replicator.pipelines.reconciliation import (
    NO_RECONCILING,
    Gone,
    Reconciling,
    TargetTableKeys,
    check_comparable,
    deleting_run,
    differing,
    is_to_reconcile,
    key_columns,
    seemingly_gone,
    source_keys,
)
from pgsluice.replicator.pipelines.resumption import RunResumption
from pgsluice.replicator.pipelines.run_letters import RunLetters
from pgsluice.replicator.pipelines.run_planning import Planned, RunPlanning, WantedRun
from pgsluice.replicator.pipelines.run_ranges import RunRanges
from pgsluice.replicator.pipelines.run_retries import tried
from pgsluice.replicator.pipelines.run_steps import bound
from pgsluice.replicator.pipelines.source_role import check_source_role
from pgsluice.replicator.pipelines.steps.step import check_modules
from pgsluice.replicator.pipelines.wish_watch import WishWatch
from pgsluice.replicator.snapshot.copy_task_messages import RowSteps
from pgsluice.replicator.snapshot.export import SnapshotKeeper, begin, import_snapshot
from pgsluice.replicator.source.connection import connect as connect_source
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.broker.published_tables import UNCHECKED, store_tables
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.pipelines.pipeline_settings import PipelineSettings
from pgsluice.shared.pipelines.run_outcome import note_outcome
from pgsluice.shared.pipelines.run_records import (
    PipelineRecord,
    RangeRecord,
    RunRecord,
    RunState,
    load_pipeline,
    store_pipeline,
)
from pgsluice.shared.pipelines.run_requests import end_cancelled, lift_pause
from pgsluice.shared.process.domain import check_domain
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The rows that a run would read, for readers. ``ranges`` is 0 when no row is wanted. ``is_resumed``: it takes up
    what is left of a run, whose rows and ranges these are."""

    is_full: bool
    is_resumed: bool
    rows: int
    ranges: int
    columns: tuple[tuple[str, str], ...]


def run(
    settings: PipelineSettings,
    pipeline: Pipeline,
    *,
    full: bool,
    wait: bool,
    request: str = "",
    reconciling: Reconciling = NO_RECONCILING,
) -> RunRecord:
    """Runs the pipeline; returns the run as it ended. ``finished``: all rows are in the stream then, with ``wait`` they
    are applied by every worker. ``paused`` or ``cancelled``, if a user requested it. Transient failures, such as a
    server's restart, are waited for as often as the pipeline's ``retries`` allow, and the run is taken up. Raises
    PgsluiceError with what hindered it.

    ``request`` is an executor's id, whose run is begun once, however often it is called; without, a user runs it, and a
    paused run continues.
    """
    check_modules(pipeline.name, pipeline.steps, settings.steps_modules)
    check_comparable(pipeline, reconciling)
    asked = WantedRun(full, request, reconciling)
    return asyncio.run(tried(pipeline, lambda: _run(settings, pipeline, asked, wait=wait)))


def plan(settings: PipelineSettings, pipeline: Pipeline, *, full: bool) -> RunPlan:
    """Returns what ``run`` would do now; nothing is written anywhere."""
    return asyncio.run(planned(settings, pipeline, full=full))


async def planned(settings: PipelineSettings, pipeline: Pipeline, *, full: bool) -> RunPlan:
    """Like ``plan``, for a caller in an event loop, who may cancel it."""
    check_modules(pipeline.name, pipeline.steps, settings.steps_modules)
    async with connected(settings.nats, f"pgsluice run {pipeline.name}") as client, AsyncExitStack() as closing:
        check_domain(settings.placement, client)
        opened = await _Opened.open(settings, pipeline, client, closing)
        found = await opened.plan(WantedRun(full))
        ranges = len(found.run.ranges)
        columns = tuple((column.name, column.type_name) for column in opened.table.columns)
        return RunPlan(found.run.is_full, found.run.attempt > 1, found.run.rows, ranges, columns)


async def examine(settings: PipelineSettings, pipeline: Pipeline, client: Client) -> None:
    """Raises PgsluiceError with what a run would refuse before it reads: the query, its columns, and rows that can come
    late without a known limit. Nothing is written, and no row is read."""
    check_domain(settings.placement, client)
    async with AsyncExitStack() as closing:
        opened = await _Opened.open(settings, pipeline, client, closing)
        if pipeline.incremental_key:
            await measured_border(opened.reader, opened.query, opened.transactions, "")


async def _run(settings: PipelineSettings, pipeline: Pipeline, asked: WantedRun, *, wait: bool) -> RunRecord:
    async with connected(settings.nats, f"pgsluice run {pipeline.name}") as client:
        check_domain(settings.placement, client)
        async with AsyncExitStack() as closing:
            source = await Source.connect(settings.source)
            closing.push_async_callback(source.close)
            await lock_run(source, pipeline)
            closing.push_async_callback(unlock_run, source, pipeline)
            await make_streams(settings, pipeline, client)
            bucket = StateBucket(client, GroupNames(pipeline.group))
            await note_outcome(bucket)
            await end_cancelled(bucket)
            if not asked.request and not asked.begun:
                await lift_pause(bucket)
            ended = await _ended_for(bucket, asked)
            if ended is None:
                async with AsyncExitStack() as reading:
                    opened = await _Opened.open(settings, pipeline, client, reading)
                    ended = await opened.run(asked, source)
            if ended.state is RunState.FINISHED and await is_to_reconcile(bucket, pipeline, asked.reconciling):
                reconciling = _reconcile(settings, pipeline, client, asked.reconciling, ended.last_sequence)
                ended = replace(ended, last_sequence=await while_locked(source, reconciling))
        if wait and ended.state is RunState.FINISHED:
            await wait_for_workers(client, GroupNames(pipeline.group), ended.last_sequence)
        return ended


async def _reconcile(
    settings: PipelineSettings, pipeline: Pipeline, client: Client, asked: Reconciling, last_sequence: int
) -> int:
    """Deletes rows at the target that the query gives no longer, when all up to ``last_sequence`` is applied: where the stream
    ends with them."""
    if asked.target is None:
        raise UsageError(
            f"where the rows of pipeline '{pipeline.name}' are is not known, so nothing can be compared",
            "give the target's host, dbname and user as well as the source's: target-host, …",
        )
    names = GroupNames(pipeline.group)
    bucket = StateBucket(client, names)
    await wait_for_workers(client, names, last_sequence)
    await note_outcome(bucket)
    connection = await connect_source(asked.target)
    try:
        record = await load_pipeline(bucket)
        assert record is not None
        await store_pipeline(bucket, replace(record, is_reconciling=True))
        async with AsyncExitStack() as reading:
            opened = await _Opened.open(settings, pipeline, client, reading)
            target = TargetTableKeys(connection, opened.query)
        there = await target.read()
        async with AsyncExitStack() as reading:  # the target was read before
            opened = await _Opened.open(settings, pipeline, client, reading)
            keys = source_keys(opened.query)
            chosen = await differing(there, opened.reader, keys)
            found, rows_read = await seemingly_gone(target, there.buckets, chosen, opened.reader, keys)
    finally:
        await connection.close()
    async with AsyncExitStack() as reading:
        opened = await _Opened.open(settings, pipeline, client, reading)
        missing = (
            await opened.reader.rows(keys.missing(found, key_columns(opened.query), opened.query.operators)) if found else []
        )
        gone = Gone(missing, rows_read + len(found), there.rows)
        return await opened.delete(gone, force=asked.force)


async def _ended_for(bucket: StateBucket, asked: WantedRun) -> RunRecord | None:
    """Returns the run of the request, if it is over: finished by an executor that died since, or cancelled."""
    record = await load_pipeline(bucket) if asked.request or asked.begun else None
    found = None if record is None else next(filter(asked.is_for, reversed(record.runs)), None)
    return None if found is None or found.state.is_unfinished else found


@dataclass(slots=True)
class _Opened:
    """A pipeline whose snapshot is open. ``table`` is what is published: what ``steps`` make of the query's columns."""

    settings: PipelineSettings
    client: Client
    transactions: OpenTransactions
    keeper: SnapshotKeeper
    reader: QueryReader
    query: QuerySql
    table: Table
    steps: RowSteps | None
    system_id: str
    database: str
    encoding: str
    opened_at: float
    """Time when planning of its run began, by the monotonic clock."""
    published_at: float = 0.0

    @classmethod
    async def open(cls, settings: PipelineSettings, pipeline: Pipeline, client: Client, closing: AsyncExitStack) -> _Opened:
        pipeline = pipeline.with_tasks(settings.spark)
        opened_at = time.monotonic()
        holding = await connect_source(settings.source)
        try:
            source = Source(holding)
            facts, system_id, encoding = await source.facts(), await source.system_id(), source.encoding
            if encoding == UNCHECKED:
                raise TerminalError("the source's encoding is SQL_ASCII", "pipelines need a database that knows its encoding")
            if settings.is_reader_required:
                await check_source_role(source, pipeline.name)
            transactions = await look(source)
            await begin(holding)
            await QueryReader(holding, pipeline).hold()
            keeper = await SnapshotKeeper.export(settings.source)
            closing.push_async_callback(keeper.close)
            connection = await connect_source(settings.source)
            closing.push_async_callback(connection.close)
            pipeline = pipeline.with_work_mem(await server_work_mem_kb(connection))
            reader = QueryReader(connection, pipeline)
            await begin(connection)
            await import_snapshot(connection, keeper.snapshot.name)
            query = await reader.query()
        finally:
            await holding.close()  # the reader's transaction holds the tables now
        steps, table = await bound(settings, pipeline, query.table, closing)
        facts_of_source = system_id, facts.database, encoding
        return cls(settings, client, transactions, keeper, reader, query, table, steps, *facts_of_source, opened_at)

    @property
    def pipeline(self) -> Pipeline:
        return self.query.pipeline

    @property
    def _replaces(self) -> bool:
        return self.pipeline.write is WriteMode.REPLACE

    @property
    def names(self) -> GroupNames:
        return GroupNames(self.pipeline.group)

    @property
    def bucket(self) -> StateBucket:
        return StateBucket(self.client, self.names)

    async def run(self, asked: WantedRun, locked: Source) -> RunRecord:
        """Runs until done; stops if the lock that ``locked`` holds is lost."""
        letters = await RunLetters.read(self.client, self.names)
        planned = await self._without_left_ranges((await self.plan(asked)).with_rows(letters.asked_again), letters)
        version = planned.record.next_version(self.keeper.snapshot.lsn)
        planned = replace(planned, run=replace(planned.run, version=version))
        record, run = planned.record.with_run(planned.run), planned.run
        asked.begun.append(run.number)
        await store_pipeline(self.bucket, record)
        ranges = RunRanges(self.bucket, self.keeper, self.reader, self._resumption, Planned(record, run))
        watch, self.published_at = WishWatch(self.bucket, run.number), time.monotonic()
        publishes = run.ranges or run.number == 1 or self._replaces  # the first makes the target's table, rows or not
        try:
            if publishes and not await watch.is_to_end():
                await run_until_first([watch.run(), self._publish(ranges), watch_lock(locked), self.reader.watch()])
            await watch.look_last()
        except PgsluiceError as error:
            await self._try_to_note_end(ranges.planned, RunState.FAILED, error.fact)
            raise
        except asyncio.CancelledError:
            await self._try_to_note_end(ranges.planned, RunState.INTERRUPTED)
            raise
        if watch.ends_as is not None:
            return await self._end_as_wished(ranges.planned, watch.ends_as)
        dead = await letters.end(run)
        run = replace(self._timed(ranges.planned.run), rows_read=ranges.rows_read, dead=dead)
        record = ranges.planned.record.finished(run, await end_in_ledger(self.client, self.names))
        await store_pipeline(self.bucket, record)
        log.info("run is finished", pipeline=self.pipeline.name, run=run.number, rows=run.rows, full=run.is_full, dead=run.dead)
        assert record.newest is not None
        return record.newest

    async def delete(self, gone: Gone, *, force: bool) -> int:
        """Publishes the deletes, as a separate run that is never taken up: the next comparison finds what is left.
        Returns where the stream ends. Raises TerminalError when there are too many."""
        record = await load_pipeline(self.bucket)
        assert record is not None
        assert record.newest is not None
        last_sequence = record.newest.last_sequence
        try:
            gone.check(self.pipeline.name, force=force)
        except TerminalError:
            await store_pipeline(self.bucket, replace(record, is_reconciling=False))
            raise
        if gone.keys:
            run = deleting_run(record, record.newest, len(gone.keys), self.keeper.snapshot.lsn)
            record = replace(record, next_range=record.next_range + 1).with_run(run)
            await store_pipeline(self.bucket, record)
            revision = await self._begin_in_ledger(record)
            publishing = PublishingRun(
                self.settings, self.client, self.query, self.table, None, run, record.snapshot, self.system_id, revision
            )
            await publishing.publish_begin()
            await publishing.publish_deletes(gone.keys)
            last_sequence = await end_in_ledger(self.client, self.names)
            record = record.finished(run, last_sequence)
        await store_pipeline(self.bucket, replace(record, reconciled_at=now(), is_reconciling=False))
        log.info("reconciled", pipeline=self.pipeline.name, deleted=len(gone.keys), rows_read=gone.rows_read, rows=gone.rows)
        return last_sequence

    async def plan(self, asked: WantedRun) -> Planned:
        """Plans what to read. Changes nothing."""
        fingerprint = self.pipeline.fingerprint(self.table, f"{self.system_id}/{self.database}")
        second = QueryReader(self.keeper.connection, self.pipeline)
        return await RunPlanning(self.reader, second, self.query, self.transactions, self.bucket, fingerprint).plan(asked)

    async def _without_left_ranges(self, planned: Planned, letters: RunLetters) -> Planned:
        """Ends the ranges of a run that was not finished. Those of the plan have numbers then that no range had."""
        record, run, left = planned.record, planned.run, planned.record.with_open_ranges
        ranges: list[RangeRecord] = list(run.ranges)
        if left is not None:
            resumption = self._resumption
            remaining = await resumption.ranges_left(record.snapshot, left)
            if run.number == left.number:
                wanted = RowsWanted(run.after, run.reread_from, run.before)
                ranges = await self.reader.counted(self.query, wanted, letters.without_dead(run, remaining))
                run = replace(run, rows_read=run.rows_read + resumption.rows)
                log.info("taking up a run", pipeline=self.pipeline.name, run=run.number, ranges=len(ranges))
            elif left.state.is_unfinished:
                record = record.with_run(left.ended(RunState.ABANDONED, left.last_sequence, left.reason))
        return Planned(record, run).with_ranges(ranges)

    @property
    def _resumption(self) -> RunResumption:
        return RunResumption(self.client, self.names, self.system_id, self.table)

    async def _publish(self, ranges: RunRanges) -> None:
        record, run = ranges.planned.record, ranges.planned.run
        revision = await self._begin_in_ledger(record)
        publishing = PublishingRun(
            self.settings, self.client, self.query, self.table, self.steps, run, record.snapshot, self.system_id, revision
        )
        await publishing.publish_begin()
        await ranges.read(publishing)
        if self._replaces:
            await publishing.publish_end()

    async def _begin_in_ledger(self, record: PipelineRecord) -> int:
        """Returns the revision of the table's record. Raises TerminalError when the stream is not the one of earlier
        runs."""
        await store_tables(self.bucket, [self.table], self.encoding)
        origin = RunOrigin(self.system_id, self.database, self.keeper.snapshot.lsn)
        return await begin_in_ledger(self.client, self.names, origin, record.snapshot, self.table)

    async def _end_as_wished(self, planned: Planned, state: RunState) -> RunRecord:
        ended = self._timed(planned.run).ended(state, await end_in_ledger(self.client, self.names))
        await store_pipeline(self.bucket, planned.record.with_run(ended))
        log.info("run ended on request", pipeline=self.pipeline.name, run=ended.number, state=state)
        return ended

    def _timed(self, run: RunRecord) -> RunRecord:
        plan_s, read_s = self.published_at - self.opened_at, time.monotonic() - self.published_at
        return replace(run, plan_s=run.plan_s + plan_s, read_s=run.read_s + read_s)

    async def _try_to_note_end(self, planned: Planned, state: RunState, reason: str = "") -> None:
        """Notes the end if NATS answers. Otherwise the run stays READING and the next start resumes it."""
        with suppress(PgsluiceError):
            ended = self._timed(planned.run).ended(state, await end_in_ledger(self.client, self.names), reason)
            await store_pipeline(self.bucket, planned.record.with_run(ended))
