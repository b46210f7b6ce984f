"""The replicator process: sessions, one after the other, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop
from nats.aio.client import Client

from replicator.backoff import Backoff
from replicator.session import Run, open_session
from replicator.tasks import cancel
from shared import telemetry
from shared.errors import TransientError
from shared.jetstream import connect
from shared.names import GroupNames
from shared.settings import ReplicatorSettings

START_PATIENCE_S = 15.0  # a server that is starting, or a slot that a killed replicator still holds

log = telemetry.logger(__name__)

T = TypeVar("T")


def run(settings: ReplicatorSettings) -> None:
    """Returns after SIGTERM or SIGINT, or when ``until_lsn`` is published and confirmed. Raises UsageError or TerminalError
    when somebody has to act, TransientError when the first session could not begin within START_PATIENCE_S."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_replicate(settings))


async def _replicate(settings: ReplicatorSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    replicator = Replicator(settings, stop)
    try:
        await replicator.run()
    finally:
        await replicator.close()


class Replicator:
    """Keeps a session running; one that ends by a passing failure is followed by another after a pause."""

    def __init__(self, settings: ReplicatorSettings, stop: asyncio.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._run = Run(settings, GroupNames(settings.group))
        self._client: Client | None = None
        self._has_streamed = False
        self._backoff = Backoff()

    async def run(self) -> None:
        started = time.monotonic()
        while not self._stop.is_set():
            try:
                await self._run_session()
                return
            except TransientError as error:
                if not self._has_streamed and time.monotonic() - started > START_PATIENCE_S:
                    raise
                pause_s = self._backoff.next_pause_s()
                log.warning("replication interrupted, trying again", reason=str(error), pause_s=pause_s)
            await self._unless_stopped(asyncio.sleep(pause_s))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _run_session(self) -> None:
        """Returns when there is nothing left to do."""
        if self._client is None or self._client.is_closed:
            self._client = await self._unless_stopped(connect(self._settings.nats, f"pgsluice replicator {self._settings.group}"))
            if self._client is None:
                return
        opening = open_session(self._run, self._client)
        session = await self._unless_stopped(opening.__aenter__())
        if session is None:
            return
        self._has_streamed = True
        try:
            await session.stream(self._stop)
        finally:
            await opening.__aexit__(None, None, None)

    async def _unless_stopped(self, call: Coroutine[Any, Any, T]) -> T | None:
        """The call's result; None, with the call cancelled, when ``stop`` came first."""
        task, stopped = asyncio.ensure_future(call), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            await cancel({task, stopped})
