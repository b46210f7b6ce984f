"""The replicator process: sessions, one after the other, until it is stopped, and in parallel the copy of the tables."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop
from nats.aio.client import Client

from pgsluice.replicator.group_start import FirstStart, Run
from pgsluice.replicator.metrics.replicator_vitals import ReplicatorVitals
from pgsluice.replicator.session import ReplicationSession, find_until, open_session
from pgsluice.replicator.source.slot_look import tell_of_slot
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.start_checks import check_records
from pgsluice.replicator.stopping import ReplicatorStopping
from pgsluice.replicator.tasks import lasting, run_until_all, run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.alerts.alert_watch import AlertWatch
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.halt import note_halt
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import HistoryError, PgsluiceError, TransientError
from pgsluice.shared.postgres.session_settings import warn_of_unverified
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.domain import check_domain
from pgsluice.shared.process.memory import reuse_freed_memory
from pgsluice.shared.process.pulse import Activity
from pgsluice.shared.process.retrying import Backoff, RetryNews
from pgsluice.shared.spark.java import check_java
from pgsluice.shared.units.desired_state import DesiredState
from pgsluice.shared.wire.names import GroupNames

if TYPE_CHECKING:
    from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy
    from pgsluice.replicator.snapshot.snapshot import Snapshot

PROGRESS_INTERVAL_S = 1.0

log = telemetry.logger(__name__)

Reload = Callable[[], tuple[ReplicatorSettings, frozenset[str]]]
"""Reads the configuration again: the settings, and the names of options that are others than at the start."""

_RELOADED = frozenset({"tables", "schema", "without-copy"})
"""Options that take effect without a restart."""


def run(settings: ReplicatorSettings, reload: Reload | None = None) -> None:
    """Returns when a signal stops it, or when the copy is finished and ``until_lsn`` is published and confirmed, as far
    as they were asked for. Without ``reload`` a SIGHUP stops it too. Raises UsageError or TerminalError when an
    operator has to act, TransientError when the first session (or the copy, when there is nothing else) could not begin
    within ``connect_timeout_s``."""
    reuse_freed_memory()
    if settings.copy is not None:
        check_java(os.environ)
    warn_of_unverified(settings.source, "source", "")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_replicate(settings, reload))


async def _replicate(settings: ReplicatorSettings, reload: Reload | None) -> None:
    replicator, call_soon = Replicator(settings), asyncio.get_running_loop().call_soon_threadsafe
    reloading = None if reload is None else functools.partial(call_soon, replicator.reload, reload)
    with stop_signals.calling(functools.partial(call_soon, replicator.request_stop), reloading):
        ended_by: BaseException | None = None
        try:
            await replicator.run()
        except BaseException as error:
            ended_by = error
            raise
        finally:
            await replicator.undo_first_start()
            await replicator.close(ended_by)


def _snapshot(settings: ReplicatorSettings) -> Snapshot | None:
    """Returns None when there is nothing to copy; then Spark is not even imported."""
    if settings.copy is None:
        return None
    from pgsluice.replicator.snapshot.snapshot import Snapshot

    return Snapshot(settings, settings.copy)


class Replicator:
    """Keeps a session running; one that ends by a passing failure is followed by another after a pause.

    The copy begins when the first session streams, and continues independent of sessions: from then on every change is
    in the change stream, and the copy's snapshot is not older than the first of them. Tables that join later are copied
    when they have joined, in parallel to the stream too.
    """

    def __init__(self, settings: ReplicatorSettings) -> None:
        self._settings = settings
        self._run = Run(settings, GroupNames(settings.group, settings.publication))
        self._stopping = ReplicatorStopping(self._run.pulse)
        self._snapshot = _snapshot(settings)
        self._client: Client | None = None
        self._is_looked = False
        self._first_start: FirstStart | None = None
        self._is_begun = False
        """True if the group exists from now on: it streams, or its copy is prepared where nothing else is asked for."""
        self._streaming = asyncio.Event()
        self._session: ReplicationSession | None = None
        self._backoff = Backoff(settings.retry.source)
        self._report = ProcessReport(REPLICATOR_UNIT, self._run.pulse, self._bucket)
        self._desired = DesiredState(REPLICATOR_UNIT, self._bucket, self._stopping, self._report)
        self._has_obeyed = self._is_finished = False
        self._state: StateBucket | None = None
        self._vitals = ReplicatorVitals(self._run, lambda: self._client, lambda: self._report.is_claimed)

    async def run(self) -> None:
        self._vitals.begin()
        calls = [self._run_sessions()]
        if self._streams and self._snapshot is not None:
            self._run.is_copying = True
            calls.append(self._copy_beside(self._snapshot))
        self._stopping.parts = len(calls)
        reporting = lasting("the report of this process", self._report.run())
        obeying = lasting("the check of the desired state", self._desired.follow())
        showing = lasting("the watch for metrics", self._vitals.run())
        alerting = lasting("the alerts", self._alert())
        await run_until_first([run_until_all(calls), reporting, obeying, showing, alerting])

    def request_stop(self) -> None:
        """Requests a stop: ``run`` returns soon, with everything published confirmed."""
        self._stopping.request()

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
        stopping = self._stopping
        while not stopping.for_good.is_set():
            await stopping.rest()
            end = stopping.end
            if not self._streaming.is_set():
                await stopping.unless_ended(self._streaming.wait(), end)
                continue
            if self._run.is_copying:
                await snapshot.run(end)
                if end.is_set():
                    continue
                self._run.is_copying = False
                if self._settings.until_lsn:
                    await self._decide_end()
            await snapshot.run_on(end)

    async def _decide_end(self) -> None:
        """``current`` is where the source is after the copy: up to there the stream has to be, for all tables to be alike."""
        backoff, stop = Backoff(self._settings.retry.source), self._stopping.for_good
        while self._run.until is None and not stop.is_set():
            try:
                source = await Source.connect(self._settings.source)
                try:
                    self._run.until = await find_until(self._settings.until_lsn, source)
                finally:
                    await source.close()
            except TransientError as error:
                pause_s = backoff.next_pause_s()
                log.warning("cannot ask the source where it is, trying again", reason=str(error), pause_s=pause_s)
                await self._stopping.unless_ended(asyncio.sleep(pause_s), stop)
        if self._session is not None and self._run.until is not None:
            self._session.finish_at(self._run.until)

    async def _run_sessions(self) -> None:
        started, news, stopping = time.monotonic(), RetryNews(), self._stopping
        while not stopping.for_good.is_set():
            end = stopping.end
            try:
                await self._run_session(end)
                if not end.is_set() and await self._is_over(end):
                    self._is_finished = True
                    stopping.request()  # of the parallel copy
                await stopping.rest()
                started = time.monotonic()
                continue
            except HistoryError as error:
                await self._note_halt(error)
                raise
            except TransientError as error:
                if not self._streaming.is_set() and time.monotonic() - started > self._settings.connect_timeout_s:
                    raise
                pause_s = self._backoff.next_pause_s()
                self._run.pulse.waits(error, pause_s)
                if news.is_due(error):
                    log.warning("replication interrupted, trying again", reason=str(error), pause_s=pause_s)
            await stopping.unless_ended(asyncio.sleep(pause_s), end)
            await stopping.rest()

    async def _is_over(self, end: asyncio.Event) -> bool:
        """Returns whether nothing is left to do. Tables that have to be copied again for something before the end are
        copied now, unless ``end`` comes first; then the end is another one.
        """
        copy = self._run.copy
        if copy is None or not self._streams or copy.idle.is_set():
            return True
        await self._stopping.unless_ended(copy.idle.wait(), end)
        if not end.is_set():
            self._run.until = None
            await self._decide_end()
        return False

    async def _note_halt(self, error: HistoryError) -> None:
        """Records the halt, so that no later start continues."""
        assert self._client is not None
        try:
            await note_halt(StateBucket(self._client, self._run.names), error)
        except TransientError as failure:
            log.warning("the findings could not be recorded; the next start finds them again", reason=str(failure))

    async def undo_first_start(self) -> None:
        """Does nothing once the group exists."""
        if self._first_start is None or self._is_begun or self._client is None or not self._client.is_connected:
            return
        await self._first_start.undo(self._client, self._settings.source, self._run.made)

    async def close(self, ended_by: BaseException | None = None) -> None:
        """Closes. ``ended_by``, the error that ended ``run``, is reported."""
        self._run.pulse.activity = Activity.ENDING
        if self._snapshot is not None:
            await self._snapshot.close()
        if self._client is not None:
            await self._report.tell_end(ended_by, is_finished=self._is_finished)
            await disconnect(self._client)
        await self._vitals.close()

    async def _run_session(self, end: asyncio.Event) -> None:
        """Returns when there is nothing left to do, or soon after ``end``."""
        client = await self._connected(end)
        if client is None or end.is_set():
            return
        await check_records(StateBucket(client, self._run.names), copies=self._snapshot is not None)
        if self._snapshot is not None:
            self._run.copy = await self._stopping.unless_ended(self._snapshot.prepare(), end)
            if self._run.copy is None or end.is_set():
                return
            if not self._streams:
                self._begin_work()
                following = lasting("the check of the copy", self._follow_copy(self._run.copy))
                await run_until_first([self._snapshot.run(end), following])
                return
        opening = open_session(self._run, client)
        session = await self._stopping.unless_ended(opening.__aenter__(), end)
        if session is None:
            return
        self._session = session
        self._begin_work()
        self._streaming.set()
        try:
            await session.stream(end)
        finally:
            self._session, self._report.is_claimed = None, False
            await opening.__aexit__(None, None, None)

    async def _connected(self, end: asyncio.Event) -> Client | None:
        """Returns the connection to NATS, where it was looked up once what this process is to do. None after ``end``."""
        if self._client is None or self._client.is_closed:
            name = f"pgsluice replicator {self._settings.group}"
            connecting = connect(self._settings.nats, name, self._settings.connect_timeout_s)
            self._client = await self._stopping.unless_ended(connecting, end)
            if self._client is None:
                return None
            check_domain(self._settings.placement, self._client)
            self._state = StateBucket(self._client, self._run.names)
            if not self._is_looked:
                self._first_start = await FirstStart.look(self._client, self._run.names)
                self._is_looked = True
        if not self._has_obeyed:
            await self._desired.look()
            self._desired.apply()
            self._has_obeyed = True
        return self._client

    def _begin_work(self) -> None:
        """Begins work: the group exists, and no other process can be its replicator now, because this one holds the
        slot, or the source's lock."""
        self._is_begun = self._report.is_claimed = True
        self._run.pulse.activity = Activity.WORKING

    async def _follow_copy(self, copy: PreparedCopy) -> None:
        """Progress of a run that only copies; where a stream is followed, that is what has to move."""
        done = copy.progress.ranges_done
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            if copy.progress.ranges_done != done:
                done = copy.progress.ranges_done
                self._run.pulse.progressed()

    async def _alert(self) -> None:
        settings, names = self._settings, self._run.names
        watch = AlertWatch(settings.alerts, names, REPLICATOR_UNIT, lambda: self._client, settings.retry.webhook)
        await run_until_first([watch.run(), self._tell_of_slot(watch)])

    async def _tell_of_slot(self, watch: AlertWatch) -> None:
        """Alerts about the slot, only where alerts are wanted: it takes a connection to the source."""
        await watch.is_wanted.wait()
        await tell_of_slot(self._settings.source, self._run.names, self._bucket)

    def _bucket(self) -> StateBucket | None:
        return None if self._client is None or self._client.is_closed else self._state
