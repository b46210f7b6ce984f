"""One round of a copy: one snapshot, and every table that waits for one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from nats.aio.client import Client

from pgsluice.replicator.retention import RunningCopyRetention
from pgsluice.replicator.snapshot.copy_state import begin_attempt
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeRequest
from pgsluice.replicator.snapshot.export import ExportedSnapshot, SnapshotKeeper
from pgsluice.replicator.snapshot.plan import plan_ranges
from pgsluice.replicator.snapshot.preparation import PreparedCopy
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.snapshot.schedule import Schedule, ScheduleRun
from pgsluice.replicator.snapshot.spark_job import most_tasks, run_job
from pgsluice.replicator.source.catalog import CopiedTable, read_tables
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.config.settings import CopySettings, ReplicatorSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.wire.lsn import format_lsn
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table

CUT_BYTES = 256 * 1024
HEADER_BYTES = 8 * 1024  # room for headers within NATS's max_payload; ours are below 1 KiB

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class CopyRuntime:
    """What carries a copy: NATS, Spark, and threads that wait for Spark's jobs."""

    client: Client
    spark: Spark
    threads: Executor


class Round:
    """``run`` once."""

    def __init__(self, settings: ReplicatorSettings, copy: CopySettings, prepared: PreparedCopy, runtime: CopyRuntime) -> None:
        self._settings = settings
        self._copy = copy
        self._prepared = prepared
        self._progress = prepared.progress
        self._runtime = runtime

    async def run(self) -> set[int]:
        """Returns the oids of tables that have to wait for another round; the others are finished or errored then. Raises
        SnapshotGoneError when the snapshot died, TransientError when source or broker failed before the copy could begin."""
        for record in self._progress.waiting:
            self._progress.put(begin_attempt(record))
        await self._progress.write()
        keeper = await self._export()
        try:
            tables = await self._plan(keeper)
            ranges = await self._announce(keeper.snapshot, tables)
            return await self._copy_ranges(keeper, ranges)
        finally:
            await keeper.close()

    async def _export(self) -> SnapshotKeeper:
        if not self._copy.then_stream:
            return await SnapshotKeeper.export(self._settings.source)
        log.info("exporting a snapshot; this waits for transactions that are open in the source")
        return await SnapshotKeeper.export_at_slot(self._settings.source, self._settings.slot_timeout_s)

    async def _plan(self, keeper: SnapshotKeeper) -> list[CopiedTable]:
        """The tables that can be copied; the others are errored."""
        waiting = {record.oid: record for record in self._progress.waiting}
        read = await read_tables(keeper.source, self._prepared.names, list(waiting), self._prepared.facts.major_version)
        for table in read:
            del waiting[table.table.oid]
            if table.obstacle is not None:
                self._progress.note_errored(table.table.oid, table.obstacle)
        for oid, record in waiting.items():
            error = TerminalError(f"table {record.qualified_name} does not exist any more", "start again without it")
            self._progress.note_errored(oid, error)
        return [table for table in read if table.obstacle is None]

    async def _announce(self, snapshot: ExportedSnapshot, tables: Sequence[CopiedTable]) -> list[list[RangeRequest]]:
        """Tells ledger and stream what the snapshot copies; gives each table's ranges."""
        prepared = self._prepared
        await prepared.store(replace(prepared.record, id=snapshot.id, lsn=format_lsn(snapshot.lsn)))
        records = {record.oid: record for record in self._progress.waiting}
        tasks = min(self._copy.workers_per_table, most_tasks(self._runtime.spark, self._copy.connections))
        planned_ranges = {}
        for table in tables:
            planned = plan_ranges(table, self._copy.range_bytes, prepared.facts.page_bytes, tasks)
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
            await self._publish_begin(snapshot, oid, attempt, head, revision)
            self._progress.note_begun(oid)
            requests.append([RangeRequest(pages, attempt, head, revision) for pages in planned_ranges[oid]])
        log.info(
            "copying tables",
            snapshot=snapshot.id,
            tables=len(tables),
            ranges=sum(len(ranges) for ranges in requests),
            bytes=sum(table.size_bytes for table in tables),
        )
        return requests

    async def _publish_begin(self, snapshot: ExportedSnapshot, oid: int, attempt: int, head: bytes, revision: int) -> None:
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
        publisher = RangePublisher(self._runtime.client, prepared.stream, subject, id_prefix)
        try:
            await publisher.publish(headers, head)
            await publisher.flush()
        finally:
            await publisher.close()

    async def _copy_ranges(self, keeper: SnapshotKeeper, ranges: Sequence[Sequence[RangeRequest]]) -> set[int]:
        parameters = CopyParameters(
            group=self._settings.group,
            source=self._settings.source,
            nats=self._settings.nats,
            system_id=self._prepared.system_id,
            snapshot_name=keeper.snapshot.name,
            snapshot_id=keeper.snapshot.id,
            cut_bytes=CUT_BYTES,
            chunk_bytes=self._runtime.client.max_payload - HEADER_BYTES,
        )
        spark = self._runtime.spark
        schedule = Schedule(ranges, self._copy.workers_per_table, self._copy.range_bytes)
        job = functools.partial(run_job, spark, parameters)
        run = ScheduleRun(schedule, job, most_tasks(spark, self._copy.connections), self._runtime.threads, self._progress)
        retention = RunningCopyRetention(self._prepared.stream, self._prepared.bucket, run.settled.removable)
        try:
            await run_until_first([run.run(), keeper.watch(), retention.run()])
        finally:
            spark.cancel_jobs()
        return run.rewritten
