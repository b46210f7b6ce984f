"""The copy of a group's tables, from the ledger's remaining tables to the end: this module names the steps, others know how.

A copy goes in rounds: one snapshot, and every table that waits. Tables that are left after one, because its snapshot
died or they were rewritten meanwhile, wait for the next. What was published under an earlier snapshot no longer counts,
by the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from nats.aio.client import Client

from pgsluice.replicator.snapshot.copy_here import copying_here, is_little
from pgsluice.replicator.snapshot.copy_round import CopyRuntime, CopyTasks, Round
from pgsluice.replicator.snapshot.group_lock import lock_group
from pgsluice.replicator.snapshot.preparation import prepare_copy
from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy
from pgsluice.replicator.snapshot.schedule import ASK_AGAIN
from pgsluice.replicator.snapshot.spark_job import DAEMON_MODULE, SparkTasks, bounded_settings, start_spark
from pgsluice.replicator.snapshot.table_progress import TableProgress, show_progress
from pgsluice.replicator.source.connection import RECOVERY_CONFLICT
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import CopyMode
from pgsluice.shared.config.copy_settings import CopySettings
from pgsluice.shared.config.declaration import files_of
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import Cause, SnapshotGoneError, TerminalError, TransientError
from pgsluice.shared.process.memory import give_back_freed_memory
from pgsluice.shared.process.retrying import Backoff
from pgsluice.shared.spark.executors import ExecutorWatch
from pgsluice.shared.spark.session import Spark

CANCEL_INTERVAL_S = 0.2
EXECUTOR_LOOK_INTERVAL_S = 1.0
MOST_ROUNDS = 5  # of one table, which is rewritten in each of them, or whose snapshots a standby ends

log = telemetry.logger(__name__)


class Snapshot:
    """``prepare`` before the group's first change is published, again when it failed; then ``run``. ``run_on`` copies what joins
    later. ``close`` at the end.

    Spark runs while tables are copied, unless they came while the group streams and hold little data. An advisory lock at the
    source keeps another copy of the group away meanwhile.
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

    async def run(self, stop: asyncio.Event, *, is_beside: bool = False) -> None:
        """Copies what is left; returns when every table is finished or errored, or after ``stop``. ``is_beside``: the
        tables came while the group streams.

        Without a stream to follow, raises TerminalError when a table is errored.
        """
        assert self._prepared is not None
        progress = self._prepared.progress
        if self._prepared.ready:
            await self._lock()
            copying = self._copy_beside(self._prepared) if is_beside else self._copy_by_spark(self._prepared)
            await run_until_first([copying, progress.run(), _wait(stop)])
            await self._until_answered(progress.write, stop)
        if not progress.waiting:
            await self._until_answered(partial(self._finish, self._prepared), stop)
        await self._release()
        give_back_freed_memory()

    async def run_on(self, stop: asyncio.Event) -> None:
        """Copies tables as they come to wait, in parallel to the stream, until ``stop``. Errors are noted for the
        tables: the stream continues."""
        assert self._prepared is not None
        prepared, backoff = self._prepared, Backoff(self._settings.retry.source)
        prepared.begin(())  # a pause may have come while one of them was copied
        while not stop.is_set():
            if not prepared.ready:
                prepared.idle.set()
            await run_until_first([_wait(prepared.work), _wait(stop)])
            prepared.work.clear()
            if stop.is_set() or not prepared.ready:
                continue
            try:
                await self.run(stop, is_beside=True)
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
                    await self._until_answered(partial(prepared.note_errored, record.oid, error), stop)

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
            while not starting.done():  # it may wait for executors, without a limit
                self._spark.cancel_jobs()
                await asyncio.wait({starting}, timeout=CANCEL_INTERVAL_S)
            await asyncio.gather(starting, return_exceptions=True)  # the caller that waited for it has its exception
            await asyncio.to_thread(self._spark.close)
            self._threads.shutdown(wait=False, cancel_futures=True)
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def _copy_beside(self, prepared: PreparedCopy) -> None:
        async with copying_here() as here:
            await run_until_first([self._run_rounds(prepared, here, only_little=True), show_progress(prepared.progress)])
        if prepared.ready:
            await self._copy_by_spark(prepared)

    async def _copy_by_spark(self, prepared: PreparedCopy) -> None:
        log.info("starting Spark", tables=len(prepared.ready))
        settings = bounded_settings(self._settings.spark, self._copy.connections)
        spark = self._spark = Spark(f"pgsluice {self._settings.group} copy", settings, DAEMON_MODULE)
        threads = self._threads = ThreadPoolExecutor(self._copy.connections, "pgsluice-copy")
        with spark.while_it_lives():
            files = files_of(self._settings.nats) + files_of(self._settings.source)
            start = partial(start_spark, spark, self._copy.connections, files)
            self._starting = asyncio.get_running_loop().run_in_executor(threads, start)
            await _started(spark, self._starting)
            tasks = SparkTasks(spark, threads, self._copy.connections)
            await run_until_first([self._run_rounds(prepared, tasks), show_progress(prepared.progress)])

    async def _until_answered(self, write: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
        """Waits for a broker that has no leader now: the copy is done, and the stream continues. One more try after
        ``stop``."""
        backoff = Backoff(self._settings.retry.source)
        while True:
            try:
                return await write()
            except TransientError as error:
                if stop.is_set():
                    raise
                log.warning("the end of the copy cannot be recorded, trying again", reason=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), backoff.next_pause_s())

    async def _run_rounds(self, prepared: PreparedCopy, tasks: CopyTasks, *, only_little: bool = False) -> None:
        assert self._client is not None
        runtime = CopyRuntime(self._client, tasks)
        backoff, lost = Backoff(self._settings.retry.source), 0
        while prepared.ready and (not only_little or await self._is_little(prepared)):
            ready = len(prepared.ready)
            try:
                rewritten = await Round(self._settings, self._copy, prepared, runtime).run()
                self._note_rewritten(prepared.progress, rewritten)
            except TransientError as error:
                is_conflict = prepared.facts.in_recovery and isinstance(error, SnapshotGoneError)
                lost = lost + 1 if is_conflict and len(prepared.ready) >= ready else 0
                if is_conflict:
                    error = SnapshotGoneError(error.fact, RECOVERY_CONFLICT)
                if lost >= MOST_ROUNDS:
                    _note_ready_errored(prepared, error)
                    continue
                pause_s = backoff.next_pause_s()
                log.warning("copy interrupted; unfinished tables are copied again", reason=str(error), pause_s=pause_s)
                await asyncio.sleep(pause_s)

    async def _is_little(self, prepared: PreparedCopy) -> bool:
        assert self._source is not None
        return await is_little(self._source, [record.oid for record in prepared.ready])

    def _note_rewritten(self, progress: TableProgress, oids: set[int]) -> None:
        self._rewritten = Counter({oid: count for oid, count in self._rewritten.items() if oid in oids})
        self._rewritten.update(oids)
        for oid in oids:
            if self._rewritten[oid] >= MOST_ROUNDS:
                del self._rewritten[oid]
                error = TransientError(
                    f"the table was truncated or rewritten during {MOST_ROUNDS} attempts to copy it",
                    f"keep TRUNCATE, VACUUM FULL, CLUSTER and ALTER TABLE away from it, then {ASK_AGAIN}",
                    Cause.SOURCE,
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


def _note_ready_errored(prepared: PreparedCopy, error: TransientError) -> None:
    for record in prepared.ready:
        fact = f"the standby ended {MOST_ROUNDS} snapshots one after the other before a table was copied ({error.fact})"
        prepared.progress.note_errored(record.oid, TerminalError(fact, error.remedy))


async def _started(spark: Spark, starting: asyncio.Future[None]) -> None:
    watch = ExecutorWatch()
    while not (await asyncio.wait({starting}, timeout=EXECUTOR_LOOK_INTERVAL_S))[0]:
        watch.look(spark)
    starting.result()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
