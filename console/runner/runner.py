"""The runner: every document's units on this machine, as long as this machine has the group's lease.

A group's document asks for its replicator and workers, a pipeline's for the worker that fills its sink. Where both mean one group
the group's own document counts, and the pipeline may not run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nats.aio.client import Client

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_settings import Bounds, check_bounds
from pgsluice.console.documents.document_store import DocumentStore, StoredDocument
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.pipelines.pipeline_catalog import PipelineCatalog
from pgsluice.console.processes.log_file import LogFile
from pgsluice.console.runner.group_units import WantedUnits, folder_of, units_of_group, units_of_pipeline
from pgsluice.console.runner.unit_place import UnitPlace
from pgsluice.console.runner.unit_runner import UnitName, UnitRunner
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.config.connections import NatsSettings
from pgsluice.shared.errors import PgsluiceError, UsageError
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.positions.lease import Lease

LOOK_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


class Runner:
    """Call ``run`` in parallel to a server. Processes that it started continue when it ends."""

    def __init__(
        self,
        client: Client,
        control: ControlBucket,
        pipelines: PipelineCatalog,
        bounds: Bounds,
        state_directory: Path,
        nats: NatsSettings,
    ) -> None:
        """``nats`` is where ``client`` is connected, and what documents mean that name none."""
        self._client = client
        self._nats = nats
        self._control = control
        self._documents = DocumentStore(control, GroupDocument)
        self._pipelines = pipelines
        self._bounds = bounds
        self._state_directory = state_directory
        self._groups: dict[str, _RunGroup] = {}
        self._news = RetryNews()
        self._pipeline_news = RetryNews()
        self._document_news: dict[str, RetryNews] = {}

    async def run(self) -> None:
        """Runs until it is cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except PgsluiceError as error:
                    if self._news.is_due(error):
                        log.warning("processes are not looked after for now", reason=str(error))
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            for group in self._groups.values():
                await group.leave()

    def log_of(self, group: str, unit: str) -> LogFile:
        """Returns the log of a unit that runs here, or ran."""
        return UnitPlace(folder_of(self._state_directory, group), unit).log

    async def _look(self) -> None:
        wanted = {stored.document.group: units_of_group(stored, self._nats) for stored in await self._readable()}
        wanted = {**await self._units_of_pipelines(), **wanted}
        for name in wanted.keys() - self._groups.keys():
            folder = folder_of(self._state_directory, name)
            self._groups[name] = _RunGroup(name, self._client, self._control, folder)
        for name, group in list(self._groups.items()):
            await group.look(wanted.get(name, {}))
            if name not in wanted:
                await self._groups.pop(name).leave()

    async def _readable(self) -> list[StoredDocument[GroupDocument]]:
        """Returns the documents that can be read and that name only what they may. Where the document of a group fails,
        its running processes continue, and the server serves the other groups as before."""
        found, problems = await self._documents.readable()
        allowed = []
        for stored in found:
            try:
                check_bounds(stored.document, self._bounds)
            except UsageError as error:
                problems.append(error)
            else:
                allowed.append(stored)
        for problem in problems:
            if self._document_news.setdefault(problem.fact, RetryNews()).is_due(problem):
                log.warning("processes of a group are not looked after for now", reason=str(problem))
        return allowed

    async def _units_of_pipelines(self) -> dict[str, WantedUnits]:
        """Returns wanted units by group. None while files about pipelines cannot be used, which affects no group:
        running processes continue."""
        try:
            places = self._pipelines.places()
            allowed = [each for each in await self._pipelines.all() if each.document is not None and each.problem is None]
        except UsageError as error:
            if self._pipeline_news.is_due(error):
                log.warning("workers of pipelines are not looked after for now", reason=str(error))
            return {}
        found: dict[str, WantedUnits] = {}
        for each in allowed:
            if places is not None and each.pipeline is not None:
                found[each.pipeline.group] = units_of_pipeline(each, places, self._nats)
        return found


class _RunGroup:
    """One group. Nothing is done before this machine has its lease."""

    def __init__(self, group: str, client: Client, control: ControlBucket, folder: Path) -> None:
        self._group = group
        self._bucket = StateBucket(client, GroupNames(group))
        self._folder = folder
        self._lease = Lease(control, group, f"runner.{group}", f"the processes of group '{group}'")
        self._acquiring: asyncio.Task[None] | None = None
        self._is_lost = False
        self._units: dict[str, UnitRunner] = {}
        self._lease_news = RetryNews()
        self._news: dict[str, RetryNews] = {}

    async def look(self, wanted: WantedUnits) -> None:
        if not self._is_ours():
            return
        for unit in wanted.keys() - self._units.keys():
            self._units[unit] = UnitRunner(UnitName(self._group, unit), UnitPlace(self._folder, unit))
        for unit, runner in self._units.items():
            try:
                await runner.look(wanted.get(unit), self._bucket)
            except (PgsluiceError, OSError) as error:
                if self._news.setdefault(unit, RetryNews()).is_due(error):
                    reason = str(error) if isinstance(error, PgsluiceError) else error.strerror
                    log.warning("a unit is not looked after for now", group=self._group, unit=unit, reason=reason)

    def _is_ours(self) -> bool:
        """Returns whether this runner holds the lease. Tries to acquire it otherwise."""
        if self._acquiring is None or self._is_lost:
            self._is_lost, self._acquiring = False, asyncio.create_task(self._lease.acquire(self._lose))
        if not self._acquiring.done():
            return False
        failed = self._acquiring.exception()
        if failed is None:
            return True
        self._acquiring = None
        if not isinstance(failed, PgsluiceError):
            raise failed
        if self._lease_news.is_due(failed):
            log.warning("a group's processes are not looked after for now", group=self._group, reason=str(failed))
        return False

    async def leave(self) -> None:
        """Gives the lease back; processes continue."""
        if self._acquiring is not None:
            await cancel([self._acquiring])
        for runner in self._units.values():
            await runner.leave()
        try:
            await self._lease.release()
        except PgsluiceError as error:
            log.debug("a runner's lease expires", group=self._group, reason=error.fact)

    def _lose(self, error: BaseException) -> None:
        log.warning("another runner has this group now, or the lease could not be kept", group=self._group, reason=str(error))
        self._is_lost = True
