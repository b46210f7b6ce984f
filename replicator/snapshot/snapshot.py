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
from pgsluice.replicator.snapshot.preparation import lock_group, prepare_copy
from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.snapshot.schedule import ASK_AGAIN, Schedule, ScheduleRun
from pgsluice.replicator.snapshot.spark_job import DAEMON_MODULE, bounded_settings, most_tasks, run_job, start_spark
from pgsluice.replicator.snapshot.table_progress import TableProgress, show_progress
from pgsluice.replicator.source.catalog import CopiedTable, read_tables
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import CopyMode, Phase, Retry, TableRecord, now
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
    """``run`` once. Its tables are those that waited when it began: one that joins them waits for the next, and one that leaves,
    or is to be copied again, is left out from then on."""

    def __init__(self, settings: ReplicatorSettings, copy: CopySettings, prepared: PreparedCopy, runtime: CopyRuntime) -> None:
        self._settings = settings
        self._copy = copy
        self._prepared = prepared
        self._progress = prepared.progress
        self._runtime = runtime
        self._oids = [record.oid for record in prepared.ready]

    async def run(self) -> set[int]:
        """Returns the oids of tables that were altered meanwhile and have to wait for another round; the others are finished or
        errored then. Raises SnapshotGoneError when the snapshot died, TransientError when source or broker failed before the copy
        could begin."""
        for record in self._prepared.ready:
            self._progress.put(begin_attempt(record))
        await self._progress.write()
        keeper = await self._export()
        try:
            tables = await self._plan(keeper)
            ranges = await self._announce(keeper.snapshot, tables)
            rewritten = await self._copy_ranges(keeper, ranges)
            return rewritten | {record.oid for record in self._progress.waiting if record.phase is Phase.INIT} & set(self._oids)
        finally:
            await keeper.close()

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
        """The tables that can be copied; the others are errored."""
        oids = list(self._copied)
        read = await read_tables(keeper.source, self._prepared.names, oids, self._prepared.facts.major_version)
        for table in read:
            if table.obstacle is not None:
                self._progress.note_errored(table.table.oid, table.obstacle)
        for oid in set(oids) - {table.table.oid for table in read}:
            if (record := self._progress.get(oid)) is not None:
                error = TerminalError(f"table {record.qualified_name} does not exist any more", "take it out of tables")
                self._progress.note_errored(oid, error, Retry.NONE)
        return [table for table in read if table.obstacle is None]

    async def _announce(self, snapshot: ExportedSnapshot, tables: Sequence[CopiedTable]) -> list[list[RangeRequest]]:
        """Tells ledger and stream what the snapshot copies; gives each table's ranges."""
        await self._prepared.note_snapshot(snapshot.id, snapshot.lsn)
        records = self._copied
        tables = [table for table in tables if table.table.oid in records]
        tasks = min(self._copy.workers_per_table, most_tasks(self._runtime.spark, self._copy.connections))
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
        """The sequence of the begin message."""
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
            return await publisher.flush()
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
    """``prepare`` before the group's first change is published, again when it failed; then ``run``. ``run_on`` copies what joins
    later. ``close`` at the end.

    Spark runs while something is copied, and so long the source is locked against another copy of the group.
    """

    def __init__(self, settings: ReplicatorSettings, copy: CopySettings) -> None:
        self._settings = settings
        self._copy = copy
        self._rewritten: Counter[int] = Counter()
        self._spark: Spark | None = None
        self._starting: asyncio.Future[None] | None = None
        self._threads: Executor | None = None
        self._client: Client | None = None
        self._source: Source | None = None
        self._prepared: PreparedCopy | None = None

    async def prepare(self) -> PreparedCopy:
        """Raises as ``prepare_copy``, and as connecting does."""
        if self._prepared is not None:
            return self._prepared
        if self._client is None:
            self._client = await connect(self._settings.nats, f"pgsluice copy {self._settings.group}")
        if self._source is not None:
            await self._source.close()
        self._source = await Source.connect(self._settings.source)
        self._prepared = await prepare_copy(self._settings, self._copy, self._client, self._source)
        return self._prepared

    async def run(self, stop: asyncio.Event) -> None:
        """Copies what is left; returns when every table is finished or errored, or after ``stop``.

        Without a stream to follow, raises TerminalError when a table is errored.
        """
        assert self._prepared is not None
        progress = self._prepared.progress
        if self._prepared.ready:
            await self._lock()
            await run_until_first([self._copy_waiting(self._prepared), progress.run(), _wait(stop)])
            await self._until_answered(progress.write, stop)
        if not progress.waiting:
            await self._until_answered(partial(self._finish, self._prepared), stop)
        await self._release()
        give_back_freed_memory()

    async def run_on(self, stop: asyncio.Event) -> None:
        """Copies tables as they come to wait, beside the stream, until ``stop``. What they cannot be copied for is theirs: the
        stream goes on."""
        assert self._prepared is not None
        prepared, backoff = self._prepared, Backoff(SESSION)
        while not stop.is_set():
            await run_until_first([_wait(prepared.work), _wait(stop)])
            prepared.work.clear()
            if stop.is_set() or not prepared.ready:
                continue
            try:
                await self.run(stop)
            except TransientError as error:
                await self._release()
                pause_s = backoff.next_pause_s()
                log.warning("copy interrupted, trying again", reason=str(error), pause_s=pause_s)
                prepared.begin(())
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause_s)
            except TerminalError as error:
                await self._release()
                for record in prepared.ready:
                    await self._until_answered(partial(prepared.give_up, record.oid, error), stop)

    async def close(self) -> None:
        """Ends Spark, which takes some seconds when it was started, and the connections. May be called again."""
        await self._release()
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)

    async def _lock(self) -> None:
        """The connection that ``prepare`` made, or another one, keeps other copies of the group away."""
        if self._source is None:
            self._source = await Source.connect(self._settings.source)
            await lock_group(self._source, self._settings.group)

    async def _release(self) -> None:
        """Ends what only a copy needs."""
        starting, self._starting = self._starting, None
        if starting is not None:
            assert self._spark is not None
            assert self._threads is not None
            while not starting.done():  # it may wait for executors, for ever
                self._spark.cancel_jobs()
                await asyncio.wait({starting}, timeout=CANCEL_INTERVAL_S)
            await asyncio.gather(starting, return_exceptions=True)  # whoever waited for it has its exception
            await asyncio.to_thread(self._spark.close)
            self._threads.shutdown(wait=False, cancel_futures=True)
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def _copy_waiting(self, prepared: PreparedCopy) -> None:
        assert self._client is not None
        log.info("starting Spark", tables=len(prepared.ready))
        settings = bounded_settings(self._settings.spark, self._copy.connections)
        spark = self._spark = Spark(f"pgsluice {self._settings.group} copy", settings, DAEMON_MODULE)
        threads = self._threads = ThreadPoolExecutor(self._copy.connections, "pgsluice-copy")
        with spark.while_it_lives():
            self._starting = asyncio.get_running_loop().run_in_executor(threads, start_spark, spark, self._copy.connections)
            await _started(spark, self._starting)
            runtime = CopyRuntime(self._client, spark, threads)
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

    async def _run_rounds(self, prepared: PreparedCopy, runtime: CopyRuntime) -> None:
        backoff = Backoff(SESSION)
        while prepared.ready:
            try:
                rewritten = await Round(self._settings, self._copy, prepared, runtime).run()
                self._note_rewritten(prepared.progress, rewritten)
            except TransientError as error:
                pause_s = backoff.next_pause_s()
                log.warning("copy interrupted; unfinished tables are copied again", reason=str(error), pause_s=pause_s)
                await asyncio.sleep(pause_s)

    def _note_rewritten(self, progress: TableProgress, oids: set[int]) -> None:
        self._rewritten = Counter({oid: count for oid, count in self._rewritten.items() if oid in oids})
        self._rewritten.update(oids)
        for oid in oids:
            if self._rewritten[oid] >= MOST_ROUNDS:
                del self._rewritten[oid]
                error = TransientError(
                    f"the table was truncated or rewritten during {MOST_ROUNDS} attempts to copy it",
                    f"keep TRUNCATE, VACUUM FULL, CLUSTER and ALTER TABLE away from it, then {ASK_AGAIN}",
                )
                progress.note_errored(oid, error)

    async def _finish(self, prepared: PreparedCopy) -> None:
        progress = prepared.progress
        if not await prepared.finish():
            return  # a table joins just now
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


async def _started(spark: Spark, starting: asyncio.Future[None]) -> None:
    while not (await asyncio.wait({starting}, timeout=WAIT_LOG_INTERVAL_S))[0]:
        if hasattr(spark, "context") and not spark.executors:
            log.warning("waiting for Spark executors", master=spark.context.master)
    starting.result()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
