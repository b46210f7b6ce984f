"""The copy of a group's tables, from what the ledger says is left to the end: this module names the steps, others know how.

A copy goes in rounds (``round``). Tables that are left after one, because its snapshot died or they were rewritten meanwhile,
wait for the next. What was published under an earlier snapshot no longer counts, by the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from nats.aio.client import Client

from pgsluice.replicator.snapshot.display import show_progress
from pgsluice.replicator.snapshot.preparation import PreparedCopy, prepare_copy
from pgsluice.replicator.snapshot.round import CopyRuntime, Round
from pgsluice.replicator.snapshot.spark_job import DAEMON_MODULE, bounded_settings, start_spark
from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import CopyMode, CopyState, now
from pgsluice.shared.config.settings import CopySettings, ReplicatorSettings
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.process.retrying import SESSION, Backoff
from pgsluice.shared.spark.session import Spark

CANCEL_INTERVAL_S = 0.2
WAIT_LOG_INTERVAL_S = 10.0
MOST_ROUNDS = 5  # for one table, which is rewritten in each of them

log = telemetry.logger(__name__)


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
