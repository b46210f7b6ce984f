"""The replicator process: sessions, one after the other, until it is told to stop, and beside them the copy of the tables."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop
from nats.aio.client import Client

from pgsluice.replicator.group_start import FirstStart, Run
from pgsluice.replicator.session import Session, find_until, open_session
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.start_checks import check_records
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.halt import note_halt
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import HistoryError, PgsluiceError, TransientError
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.memory import reuse_freed_memory
from pgsluice.shared.process.retrying import SESSION, Backoff, RetryNews
from pgsluice.shared.spark.java import check_java
from pgsluice.shared.wire.names import GroupNames

if TYPE_CHECKING:
    from pgsluice.replicator.snapshot.snapshot import Snapshot

log = telemetry.logger(__name__)

T = TypeVar("T")


Reload = Callable[[], tuple[ReplicatorSettings, frozenset[str]]]
"""Reads the configuration again: the settings, and the names of options that are others than at the start."""

_RELOADED = frozenset({"tables", "schema", "without-copy"})
"""Options that take effect without a restart."""


def run(settings: ReplicatorSettings, reload: Reload | None = None) -> None:
    """Returns when a signal stops it, or when the copy is finished and ``until_lsn`` is published and confirmed, as far as they
    were asked for. Without ``reload`` a SIGHUP stops it too. Raises UsageError or TerminalError when somebody has to act,
    TransientError when the first session (or the copy, when there is nothing else) could not begin within
    ``connect_timeout_s``."""
    reuse_freed_memory()
    if settings.copy is not None:
        check_java(os.environ)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_replicate(settings, reload))


async def _replicate(settings: ReplicatorSettings, reload: Reload | None) -> None:
    stop, call_soon = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
    replicator = Replicator(settings, stop)
    reloading = None if reload is None else functools.partial(call_soon, replicator.reload, reload)
    with stop_signals.calling(functools.partial(call_soon, stop.set), reloading):
        try:
            await replicator.run()
        finally:
            await replicator.undo_first_start()
            await replicator.close()


def _snapshot(settings: ReplicatorSettings) -> Snapshot | None:
    """None when nothing is to be copied; then Spark is not even imported."""
    if settings.copy is None:
        return None
    from pgsluice.replicator.snapshot.snapshot import Snapshot

    return Snapshot(settings, settings.copy)


class Replicator:
    """Keeps a session running; one that ends by a passing failure is followed by another after a pause.

    The copy begins when the first session streams, and goes on whatever happens to sessions: from then on every change is in
    the change stream, and what the copy's snapshot shows is not older than the first of them. Tables that join later are copied
    when they have joined, beside the stream too.
    """

    def __init__(self, settings: ReplicatorSettings, stop: asyncio.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._run = Run(settings, GroupNames(settings.group, settings.publication))
        self._snapshot = _snapshot(settings)
        self._client: Client | None = None
        self._is_looked = False
        self._first_start: FirstStart | None = None
        self._is_begun = False
        """Whether the group exists from now on: it streams, or its copy is prepared where nothing else is asked for."""
        self._streaming = asyncio.Event()
        self._session: Session | None = None
        self._backoff = Backoff(SESSION)

    async def run(self) -> None:
        calls = [self._run_sessions()]
        if self._streams and self._snapshot is not None:
            self._run.is_copying = True
            calls.append(self._copy_beside(self._snapshot))
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            ended = [task for task in tasks if task.done()]
            await cancel(tasks)
        for task in ended:
            task.result()

    def reload(self, read_again: Reload) -> None:
        """Has the running group follow the tables that the configuration names now. One that cannot be read changes nothing."""
        try:
            settings, changed = read_again()
        except PgsluiceError as error:
            log.error("the configuration cannot be read; nothing is changed", reason=error.fact, remedy=error.remedy)
            return
        log.info("the configuration was read again", tables=",".join(settings.tables) or "all", schema=settings.schema)
        if others := sorted(changed - _RELOADED):
            log.warning("options were changed that need a restart", options=",".join(others))
        run = self._run
        run.settings = replace(run.settings, tables=settings.tables, schema=settings.schema, without_copy=settings.without_copy)
        run.is_configuration_new = True

    @property
    def _streams(self) -> bool:
        return self._settings.copy is None or self._settings.copy.then_stream

    async def _copy_beside(self, snapshot: Snapshot) -> None:
        if await self._unless_stopped(self._streaming.wait()):
            await snapshot.run(self._stop)
            self._run.is_copying = False
            if self._settings.until_lsn and not self._stop.is_set():
                await self._decide_end()
            await snapshot.run_on(self._stop)

    async def _decide_end(self) -> None:
        """``current`` is where the source is after the copy: up to there the stream has to be, for all tables to be alike."""
        backoff = Backoff(SESSION)
        while self._run.until is None and not self._stop.is_set():
            try:
                source = await Source.connect(self._settings.source)
                try:
                    self._run.until = await find_until(self._settings.until_lsn, source)
                finally:
                    await source.close()
            except TransientError as error:
                pause_s = backoff.next_pause_s()
                log.warning("cannot ask the source where it is, trying again", reason=str(error), pause_s=pause_s)
                await self._unless_stopped(asyncio.sleep(pause_s))
        if self._session is not None and self._run.until is not None:
            self._session.finish_at(self._run.until)

    async def _run_sessions(self) -> None:
        started, news = time.monotonic(), RetryNews()
        while not self._stop.is_set():
            try:
                await self._run_session()
                self._stop.set()  # of the copy beside it
                return
            except HistoryError as error:
                await self._note_halt(error)
                raise
            except TransientError as error:
                if not self._streaming.is_set() and time.monotonic() - started > self._settings.connect_timeout_s:
                    raise
                pause_s = self._backoff.next_pause_s()
                if news.is_due(error):
                    log.warning("replication interrupted, trying again", reason=str(error), pause_s=pause_s)
            await self._unless_stopped(asyncio.sleep(pause_s))

    async def _note_halt(self, error: HistoryError) -> None:
        """So that no later start goes on, whatever it finds."""
        assert self._client is not None
        try:
            await note_halt(StateBucket(self._client, self._run.names), error)
        except TransientError as failure:
            log.warning("what was found could not be recorded; the next start finds it again", reason=str(failure))

    async def undo_first_start(self) -> None:
        """Does nothing once the group exists."""
        if self._first_start is None or self._is_begun or self._client is None or not self._client.is_connected:
            return
        await self._first_start.undo(self._client, self._settings.source, self._run.made)

    async def close(self) -> None:
        if self._snapshot is not None:
            await self._snapshot.close()
        if self._client is not None:
            await disconnect(self._client)

    async def _run_session(self) -> None:
        """Returns when there is nothing left to do."""
        if self._client is None or self._client.is_closed:
            name = f"pgsluice replicator {self._settings.group}"
            connecting = connect(self._settings.nats, name, self._settings.connect_timeout_s)
            self._client = await self._unless_stopped(connecting)
            if self._client is None:
                return
            if not self._is_looked:
                self._first_start = await FirstStart.look(self._client, self._run.names)
                self._is_looked = True
        await check_records(StateBucket(self._client, self._run.names), copies=self._snapshot is not None)
        if self._snapshot is not None:
            self._run.copy = await self._unless_stopped(self._snapshot.prepare())
            if self._stop.is_set():
                return
            if not self._streams:
                self._is_begun = True
                await self._snapshot.run(self._stop)
                return
        opening = open_session(self._run, self._client)
        session = await self._unless_stopped(opening.__aenter__())
        if session is None:
            return
        self._session = session
        self._is_begun = True
        self._streaming.set()
        try:
            await session.stream(self._stop)
        finally:
            self._session = None
            await opening.__aexit__(None, None, None)

    async def _unless_stopped(self, call: Coroutine[Any, Any, T]) -> T | None:
        """The call's result; None, with the call cancelled, when ``stop`` came first."""
        task, stopped = asyncio.ensure_future(call), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            await cancel({task, stopped})
