"""One round of a copy: a snapshot, and every table that waits, in ranges to the snapshot stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Protocol

from nats.aio.client import Client

from pgsluice.replicator.retention import RunningCopyRetention
from pgsluice.replicator.snapshot.copy_state import begin_attempt, dropped
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeRequest
from pgsluice.replicator.snapshot.export import ExportedSnapshot, SnapshotKeeper
from pgsluice.replicator.snapshot.held_ranges import HeldRanges
from pgsluice.replicator.snapshot.plan import plan_ranges
from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.snapshot.schedule import Job, Schedule, ScheduleRun
from pgsluice.replicator.snapshot.stream_share import StreamShare, share_of_stream, size_of
from pgsluice.replicator.source.catalog import CopiedTable, read_tables
from pgsluice.replicator.source.inheritance import heirs_left_out
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.ledger import Phase, TableRecord, now
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.config.copy_settings import CopySettings
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.preflight.finding import listed
from pgsluice.shared.wire.position import format_lsn
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table

log = telemetry.logger(__name__)


class CopyTasks(Protocol):
    """Tasks that copy ranges, ``most`` at a time, each while a thread of ``threads`` waits for it."""

    @property
    def most(self) -> int: ...

    @property
    def threads(self) -> Executor: ...

    def job(self, parameters: CopyParameters) -> Job:
        """Returns what copies ranges of that snapshot."""

    def cancel(self) -> None:
        """Ends a running copy, if any."""


@dataclass(frozen=True, slots=True)
class CopyRuntime:
    """The parts that a copy runs on."""

    client: Client
    tasks: CopyTasks


class Round:
    """``run`` once. Its tables are the ones that waited when it began: one that joins them waits for the next, and one
    that leaves, or must be copied again, is left out from then on."""

    def __init__(self, settings: ReplicatorSettings, copy: CopySettings, prepared: PreparedCopy, runtime: CopyRuntime) -> None:
        self._settings = settings
        self._copy = copy
        self._prepared = prepared
        self._progress = prepared.progress
        self._runtime = runtime
        self._oids = [record.oid for record in prepared.ready]
        self._rewritten: set[int] = set()

    async def run(self) -> set[int]:
        """Returns the oids of tables that were altered meanwhile and have to wait for another round; the others are finished or
        errored then. Raises SnapshotGoneError when the snapshot died, TransientError when source or broker failed before the copy
        could begin, TerminalError when the stream is too small."""
        stream = await self._prepared.stream_state()
        share = self._share(stream)
        for record in self._prepared.ready:
            self._progress.put(begin_attempt(record))
        await self._progress.write()
        keeper = await self._export()
        self._prepared.snapshot_since = time.monotonic()
        try:
            tables = await self._plan(keeper)
            held = HeldRanges(self._prepared.names, keeper.snapshot.id, (await self._prepared.stream_state()).last_sequence)
            retention = RunningCopyRetention(self._prepared.stream, self._prepared.bucket, held)
            copying = self._copy_tables(keeper.snapshot, tables, share, held)
            await run_until_first([copying, keeper.watch(), retention.run()])
            return self._rewritten | {record.oid for record in self._progress.waiting if record.phase is Phase.INIT} & set(
                self._oids
            )
        finally:
            self._prepared.snapshot_since = None
            await keeper.close()

    def _share(self, stream: StreamState) -> StreamShare:
        tasks, name = self._runtime.tasks.most, self._prepared.stream.name
        share = share_of_stream(name, size_of(stream), tasks, self._runtime.client.max_payload)
        if share.tasks < tasks:
            log.warning(
                "the stream is small: fewer tasks copy at a time", stream=name, max_bytes=size_of(stream), tasks=share.tasks
            )
        return share

    @property
    def _copied(self) -> dict[int, TableRecord]:
        """The tables of this round that it still has to copy, by oid."""
        return {
            record.oid: record
            for record in self._progress.waiting
            if record.oid in self._oids and record.phase is Phase.DATA_SYNC
        }

    async def _export(self) -> SnapshotKeeper:
        if not self._copy.then_stream:
            return await SnapshotKeeper.export(self._settings.source)
        log.info("exporting a snapshot; this waits for transactions that are open in the source")
        return await SnapshotKeeper.export_at_slot(self._settings.source, self._settings.slot_timeout_s)

    async def _plan(self, keeper: SnapshotKeeper) -> list[CopiedTable]:
        """Plans the tables that can be copied; notes the others as errored, and missing ones as having left."""
        oids = list(self._copied)
        read = await read_tables(keeper.source, self._prepared.names, oids, self._prepared.facts.major_version)
        for name, heirs in await heirs_left_out(keeper.source, oids, [record.oid for record in self._progress.records]):
            log.warning("rows of tables that inherit are not copied with their parent", parent=name, inheriting=listed(heirs, 3))
        for table in read:
            if table.obstacle is not None:
                self._progress.note_errored(table.table.oid, table.obstacle)
        for oid in set(oids) - {table.table.oid for table in read}:
            if (record := self._progress.get(oid)) is not None:
                log.info("a table was dropped before it was copied", table=record.qualified_name)
                self._progress.put(dropped(record))
        return [table for table in read if table.obstacle is None]

    async def _copy_tables(
        self, snapshot: ExportedSnapshot, tables: Sequence[CopiedTable], share: StreamShare, held: HeldRanges
    ) -> None:
        ranges = await self._announce(snapshot, tables, share.tasks)
        await self._copy_ranges(snapshot, ranges, share, held)

    async def _announce(self, snapshot: ExportedSnapshot, tables: Sequence[CopiedTable], tasks: int) -> list[list[RangeRequest]]:
        """Announces the snapshot in ledger and stream; returns each table's ranges."""
        await self._prepared.note_snapshot(snapshot.id, snapshot.lsn)
        records = self._copied
        tables = [table for table in tables if table.table.oid in records]
        tasks = min(self._copy.workers_per_table, tasks)
        planned_ranges = {}
        for table in tables:
            planned = plan_ranges(table, self._copy.range_bytes, self._prepared.facts.page_bytes, tasks)
            record = replace(
                records[table.table.oid],
                snapshot=snapshot.id,
                lsn=format_lsn(snapshot.lsn),
                began_at=now(),
                bytes_total=sum(pages.size_bytes for pages in planned),
                ranges=len(planned),
            )
            self._progress.put(record)
            planned_ranges[table.table.oid] = planned
        await self._progress.write()
        requests = []
        for table in tables:
            oid, head = table.table.oid, encode_table(table.table)
            attempt, revision = records[oid].attempt, self._progress.written_revision(oid)
            if not self._progress.is_copying(oid):
                continue
            sequence = await self._publish_begin(snapshot, oid, attempt, head, revision)
            self._progress.note_begun(oid, sequence)
            requests.append([RangeRequest(pages, attempt, head, revision) for pages in planned_ranges[oid]])
        log.info(
            "copying tables",
            snapshot=snapshot.id,
            tables=len(tables),
            ranges=sum(len(ranges) for ranges in requests),
            bytes=sum(table.size_bytes for table in tables),
        )
        return requests

    async def _publish_begin(self, snapshot: ExportedSnapshot, oid: int, attempt: int, head: bytes, revision: int) -> int:
        """Publishes the begin message; returns its sequence."""
        prepared = self._prepared
        headers = SnapshotHeaders(
            snapshot=snapshot.id,
            oid=oid,
            attempt=attempt,
            range_number=None,
            number=1,
            rows=0,
            range_rows=0,
            range_bytes=0,
            is_range_end=False,
            ledger_revision=revision,
        )
        subject = prepared.names.snapshot_begin_subject(snapshot.id, oid)
        id_prefix = f"{prepared.system_id}/{snapshot.id}/{oid}/begin/"
        publisher = RangePublisher(self._runtime.client, prepared.stream, subject, id_prefix, self._settings.retry.copied_rows)
        try:
            await publisher.publish(headers, head)
            return await publisher.flush()
        finally:
            await publisher.close()

    async def _copy_ranges(
        self, snapshot: ExportedSnapshot, ranges: Sequence[Sequence[RangeRequest]], share: StreamShare, held: HeldRanges
    ) -> None:
        parameters = CopyParameters(
            group=self._settings.group,
            source=self._settings.source,
            nats=self._settings.nats,
            system_id=self._prepared.system_id,
            snapshot_name=snapshot.name,
            snapshot_id=snapshot.id,
            share=share,
            pauses=self._settings.retry.copied_rows,
        )
        tasks = self._runtime.tasks
        schedule = Schedule(ranges, self._copy.workers_per_table, self._copy.range_bytes, share.ranges)
        job = tasks.job(parameters)
        run = ScheduleRun(schedule, job, share.tasks, tasks.threads, self._progress, self._settings.retry.copied_range, held)
        try:
            await run.run()
        finally:
            tasks.cancel()
        self._rewritten = run.rewritten
