"""The copy of a group's tables, from what the ledger says is left to the end: this module names the steps, others know how.

A copy goes in rounds: one snapshot, and every table that waits for one. Tables that are left after one, because its snapshot died
or they were rewritten meanwhile, wait for the next. What was published under an earlier snapshot no longer counts, by the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nats.aio.client import Client

from pgsluice.replicator.retention import RunningCopyRetention
from pgsluice.replicator.snapshot.copy_state import begin_attempt
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeRequest
from pgsluice.replicator.snapshot.export import ExportedSnapshot, SnapshotKeeper
from pgsluice.replicator.snapshot.plan import plan_ranges
from pgsluice.replicator.snapshot.preparation import PreparedCopy, prepare_copy
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.snapshot.schedule import Schedule, ScheduleRun
from pgsluice.replicator.snapshot.spark_job import DAEMON_MODULE, bounded_settings, most_tasks, run_job, start_spark
from pgsluice.replicator.snapshot.table_progress import TableProgress, show_progress
from pgsluice.replicator.source.catalog import CopiedTable, read_tables
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import CopyMode, CopyState, now
from pgsluice.shared.config.settings import CopySettings, ReplicatorSettings
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.process.memory import give_back_freed_memory
from pgsluice.shared.process.retrying import SESSION, Backoff
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.wire.position import format_lsn
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table

CUT_BYTES = 256 * 1024
HEADER_BYTES = 8 * 1024  # room for headers within NATS's max_payload; ours are below 1 KiB

CANCEL_INTERVAL_S = 0.2
WAIT_LOG_INTERVAL_S = 10.0
MOST_ROUNDS = 5  # for one table, which is rewritten in each of them

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
        job = partial(run_job, spark, parameters)
        run = ScheduleRun(schedule, job, most_tasks(spark, self._copy.connections), self._runtime.threads, self._progress)
        retention = RunningCopyRetention(self._prepared.stream, self._prepared.bucket, run.settled.removable)
        try:
            await run_until_first([run.run(), keeper.watch(), retention.run()])
        finally:
            spark.cancel_jobs()
        return run.rewritten


class Snapshot:
    """``prepare`` before the group's first change is published, again when it failed; then ``run`` once; ``close`` at the end."""

    def __init__(self, settings: ReplicatorSettings, copy: CopySettings) -> None:
        self._settings = settings
        self._copy = copy
        self._rewritten: Counter[int] = Counter()
        self._spark = Spark(f"pgsluice {settings.group} copy", bounded_settings(settings.spark, copy.connections), DAEMON_MODULE)
        self._threads = ThreadPoolExecutor(copy.connections, "pgsluice-copy")
        self._starting: asyncio.Future[object] | None = None
        self._client: Client | None = None
        self._source: Source | None = None
        self._prepared: PreparedCopy | None = None

    async def prepare(self) -> None:
        """Raises as ``prepare_copy``, and as connecting does."""
        if self._prepared is not None:
            return
        if self._client is None:
            self._client = await connect(self._settings.nats, f"pgsluice copy {self._settings.group}")
        if self._source is not None:
            await self._source.close()
        self._source = await Source.connect(self._settings.source)
        self._prepared = await prepare_copy(self._settings, self._copy, self._client, self._source)

    async def run(self, stop: asyncio.Event) -> None:
        """Copies what is left; returns when every table is finished or errored, or after ``stop``.

        Without a stream to follow, raises TerminalError when a table is errored.
        """
        assert self._prepared is not None
        progress = self._prepared.progress
        if progress.waiting:
            await run_until_first([self._copy_waiting(self._prepared), progress.run(), _wait(stop)])
            await self._until_answered(progress.write, stop)
        if not progress.waiting:
            await self._until_answered(partial(self._finish, self._prepared), stop)
        await self.close()
        give_back_freed_memory()

    async def close(self) -> None:
        """Ends Spark, which takes some seconds when it was started, and the connections. May be called again."""
        starting, self._starting = self._starting, None
        if starting is not None:
            while not starting.done():  # it may wait for executors, for ever
                self._spark.cancel_jobs()
                await asyncio.wait({starting}, timeout=CANCEL_INTERVAL_S)
            await asyncio.gather(starting, return_exceptions=True)  # whoever waited for it has its exception
            await asyncio.to_thread(self._spark.close)
            self._threads.shutdown(wait=False, cancel_futures=True)
        source, self._source = self._source, None
        if source is not None:
            await source.close()
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)

    async def _copy_waiting(self, prepared: PreparedCopy) -> None:
        assert self._client is not None
        log.info("starting Spark", tables=len(prepared.progress.waiting))
        with self._spark.while_it_lives():
            self._starting = asyncio.get_running_loop().run_in_executor(
                self._threads, start_spark, self._spark, self._copy.connections
            )
            await self._started(self._starting)
            runtime = CopyRuntime(self._client, self._spark, self._threads)
            await run_until_first([self._run_rounds(prepared, runtime), show_progress(prepared.progress)])

    async def _until_answered(self, write: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
        """Waits for a broker that has no leader now: the copy is done, and the stream beside it goes on. One more try after
        ``stop``."""
        backoff = Backoff(SESSION)
        while True:
            try:
                return await write()
            except TransientError as error:
                if stop.is_set():
                    raise
                log.warning("the end of the copy cannot be recorded, trying again", reason=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), backoff.next_pause_s())

    async def _started(self, starting: asyncio.Future[object]) -> None:
        while not (await asyncio.wait({starting}, timeout=WAIT_LOG_INTERVAL_S))[0]:
            if hasattr(self._spark, "context") and not self._spark.executors:
                log.warning("waiting for Spark executors", master=self._spark.context.master)
        starting.result()

    async def _run_rounds(self, prepared: PreparedCopy, runtime: CopyRuntime) -> None:
        backoff = Backoff(SESSION)
        while prepared.progress.waiting:
            try:
                rewritten = await Round(self._settings, self._copy, prepared, runtime).run()
                self._note_rewritten(prepared.progress, rewritten)
            except TransientError as error:
                pause_s = backoff.next_pause_s()
                log.warning("copy interrupted; unfinished tables are copied again", reason=str(error), pause_s=pause_s)
                await asyncio.sleep(pause_s)

    def _note_rewritten(self, progress: TableProgress, oids: set[int]) -> None:
        self._rewritten.update(oids)
        for oid in oids:
            if self._rewritten[oid] >= MOST_ROUNDS:
                error = TerminalError(
                    f"the table was truncated or rewritten during {MOST_ROUNDS} attempts to copy it",
                    "keep TRUNCATE, VACUUM FULL, CLUSTER and ALTER TABLE away from it, then start with --retry-errored",
                )
                progress.note_errored(oid, error)

    async def _finish(self, prepared: PreparedCopy) -> None:
        progress = prepared.progress
        if prepared.record.state is CopyState.RUNNING:
            state = await prepared.stream.state()
            if state is None:
                raise TerminalError(f"stream {prepared.stream.name} is gone", "run 'pgsluice drop' and start again")
            finished = replace(prepared.record, state=CopyState.FINISHED, finished_at=now(), last_sequence=state.last_sequence)
            await prepared.store(finished)
        copied = [record for record in progress.records if not record.error]
        log.info(
            "copy is finished",
            tables=len(copied),
            errored=len(progress.errored),
            rows=sum(record.rows for record in copied),
            bytes=sum(record.bytes for record in copied),
            sequence=prepared.record.last_sequence,
        )
        if progress.errored and prepared.record.mode is CopyMode.COPY:
            names = ", ".join(record.qualified_name for record in progress.errored)
            raise TerminalError(f"not copied: {names}", "see above and 'pgsluice status' for the reasons")


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()
