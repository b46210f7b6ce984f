"""``pgsluice schedule``, from its connection to its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.executor.executors import Executors, RunPlaces
from pgsluice.console.pipelines.pipeline_catalog import PipelineCatalog
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.tasks import cancel, lasting
from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.pipelines.pipeline_settings import ScheduleSettings
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.private_file import state_home

log = telemetry.logger(__name__)


def run(settings: ScheduleSettings, given: Mapping[str, str]) -> None:
    """Runs until a signal stops it. ``given`` are this command's flags, as variables: runs get them, and the
    environment. Raises UsageError for a pipelines file that cannot be used, TransientError when NATS does not answer
    within ``connect_timeout_s``."""
    places = RunPlaces({**os.environ, **given}, _folder(settings), settings.replicas)
    asyncio.run(_run(settings, places))


def _folder(settings: ScheduleSettings) -> Path:
    return Path(settings.folder) if settings.folder else state_home() / "schedule"


async def runnable(catalog: PipelineCatalog) -> Sequence[Pipeline]:
    """Returns the pipelines that may run now."""
    return [each.pipeline for each in await catalog.all() if each.pipeline is not None and each.problem is None]


async def _run(settings: ScheduleSettings, places: RunPlaces) -> None:
    client = await connect(settings.nats, "pgsluice schedule", settings.connect_timeout_s)
    try:
        catalog = PipelineCatalog(settings.catalog, settings.nats, settings.own, ControlBucket(client))
        await catalog.all()
        listing = partial(runnable, catalog)
        executing = asyncio.ensure_future(lasting("the executor of pipelines", Executors(client, listing, places).run()))
        stopped = asyncio.Event()
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        with stop_signals.calling(lambda: call_soon(stopped.set)):
            log.info("executing pipelines", file=settings.catalog.file or "none")
            waiting = asyncio.ensure_future(stopped.wait())
            await asyncio.wait({executing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if executing.done():
                executing.result()
            await cancel([executing])
            log.info("stopped")
    finally:
        await disconnect(client)
