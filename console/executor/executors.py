"""The executors of all pipelines that one process knows. For each pipeline it executes as long as it has the pipeline's lease."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nats.aio.client import Client

from pgsluice.console.executor.run_executor import RunExecutor
from pgsluice.console.processes.child_process import Command
from pgsluice.console.processes.log_file import LogFile
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.pipelines.run_requests import RunRequest
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.positions.lease import Lease

LOOK_INTERVAL_S = 1.0
LIST_INTERVAL_S = 5.0
LEASE_KEY = "executor"

_PROGRAM = (sys.executable, "-P", "-m", "pgsluice.console.program")

log = telemetry.logger(__name__)

Listing = Callable[[], Awaitable[Sequence[Pipeline]]]
"""All pipelines that may run, as they are now."""


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """The environment of runs: ``environment`` holds all settings, in ``folder`` are their logs. ``replicas`` apply to
    state buckets that do not exist yet."""

    environment: Mapping[str, str]
    folder: Path
    replicas: int

    def command(self, pipeline: str, request: RunRequest) -> Command:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        full = ("--full",) if request.full else ()
        return Command(
            name=f"run of {pipeline}",
            arguments=(*_PROGRAM, "run", pipeline, f"--request={request.id}", *full),
            environment=self.environment,
            log=LogFile(self.folder / f"{pipeline.replace(os.sep, '_')}.log"),
        )


class Executors:
    """``run`` continues until it is cancelled; current runs end with it, and another executor takes them up."""

    def __init__(self, client: Client, listing: Listing, places: RunPlaces) -> None:
        self._client = client
        self._listing = listing
        self._places = places
        self._executors: dict[str, _Leased] = {}
        self._news = RetryNews()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        list_at = 0.0
        try:
            while True:
                if loop.time() >= list_at:
                    await self._list()
                    list_at = loop.time() + LIST_INTERVAL_S
                for each in self._executors.values():
                    await each.look()
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            await asyncio.gather(*(each.leave() for each in self._executors.values()))

    async def _list(self) -> None:
        try:
            listed = {pipeline.name: pipeline for pipeline in await self._listing()}
        except PgsluiceError as error:
            if self._news.is_due(error):
                log.warning("pipelines cannot be listed now, continuing with the known ones", reason=str(error))
            return
        for name in self._executors.keys() - listed.keys():
            await self._executors.pop(name).leave()
        for name, pipeline in listed.items():
            known = self._executors.get(name)
            if known is not None and known.pipeline.group != pipeline.group:
                await self._executors.pop(name).leave()
            if name not in self._executors:
                self._executors[name] = _Leased(self._client, pipeline, self._places)
            self._executors[name].pipeline = pipeline


class _Leased:
    """One pipeline. Nothing is done for it before this process has its lease."""

    def __init__(self, client: Client, pipeline: Pipeline, places: RunPlaces) -> None:
        self.pipeline = pipeline
        self._replicas = places.replicas
        self._bucket = StateBucket(client, GroupNames(pipeline.group))
        self._lease = Lease(self._bucket, pipeline.name, LEASE_KEY, f"the runs of pipeline '{pipeline.name}'")
        self._executor = RunExecutor(pipeline.name, self._bucket, partial(places.command, pipeline.name))
        self._acquiring: asyncio.Task[None] | None = None
        self._is_lost = False
        self._news = RetryNews()

    async def look(self) -> None:
        try:
            await self._look()
        except (PgsluiceError, OSError) as error:
            if self._news.is_due(error):
                reason = str(error) if isinstance(error, PgsluiceError) else error.strerror
                log.warning("a pipeline is not executed for now", pipeline=self.pipeline.name, reason=reason)

    async def _look(self) -> None:
        if self._is_lost:
            self._is_lost, self._acquiring = False, None
            await self._executor.leave()
        if self._acquiring is None:
            await self._bucket.make(self._replicas)
            self._acquiring = asyncio.create_task(self._lease.acquire(self._lose))
        if self._acquiring.done():
            acquiring, failed = self._acquiring, self._acquiring.exception()
            if failed is not None:
                self._acquiring = None
            acquiring.result()
            if self._lease.is_held:
                await self._executor.look(self.pipeline.schedule)

    def _lose(self, error: BaseException) -> None:
        log.warning("another executor has this pipeline now", pipeline=self.pipeline.name, reason=str(error))
        self._is_lost = True

    async def leave(self) -> None:
        """Gives the lease back, after the current run has ended."""
        if self._acquiring is not None:
            await cancel([self._acquiring])
        await self._executor.leave()
        try:
            await self._lease.release()
        except PgsluiceError as error:
            log.debug("an executor's lease expires", pipeline=self.pipeline.name, reason=error.fact)
