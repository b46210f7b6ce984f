"""The parts that the endpoints of one server share, begun by ``console.server.server``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from nats.aio.client import Client

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_settings import Bounds
from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.executor.executors import Executors
from pgsluice.console.pipelines.pipeline_catalog import PipelineCatalog
from pgsluice.console.pipelines.pipeline_document import PipelineDocument
from pgsluice.console.runner.runner import Runner
from pgsluice.console.server.access.entrance import Entrance
from pgsluice.console.server.access.origin import OwnOrigin, Proxies
from pgsluice.console.server.access.principal import Principal
from pgsluice.console.server.access.request_rates import RequestRates
from pgsluice.console.server.audit import AuditStream
from pgsluice.console.server.fair_share import FairShare
from pgsluice.console.server.live.event_stream import EventStreams
from pgsluice.console.server.live.group_looks import GroupLooks
from pgsluice.console.server.live.series import SeriesStore
from pgsluice.console.server.repeated_requests import RepeatedRequests
from pgsluice.shared.config.server_settings import ServerSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerParts:
    """``client`` is connected, and reconnects automatically."""

    settings: ServerSettings
    version: str
    client: Client
    origin: OwnOrigin
    proxies: Proxies | None
    entrance: Entrance
    rates: RequestRates
    control: ControlBucket
    documents: DocumentStore[GroupDocument]
    bounds: Bounds
    pipelines: PipelineCatalog
    pipeline_documents: DocumentStore[PipelineDocument]
    audit: AuditStream
    repeated: RepeatedRequests
    looks: GroupLooks
    streams: EventStreams
    series: SeriesStore
    trying: FairShare
    """The shares of trials of rules and of traces: they take memory, threads and processes."""
    parsing: Executor
    """One thread that reads texts of clients: some take long, and no other answer waits for that."""
    checks: Executor
    """Threads of checks, which wait for servers that may not answer: all else that blocks has others."""
    runner: Runner | None
    executors: Executors | None

    async def parsed(self, who: Principal, parse: Callable[..., T], *arguments: object) -> T:
        """Returns what ``parse`` makes of a text that a client sent, and charges the time to the client's rate."""
        loop = asyncio.get_running_loop()

        def timed() -> T:
            begun_s = time.thread_time()
            try:
                return parse(*arguments)
            finally:
                charge = partial(self.rates.charge, who, processor_s=time.thread_time() - begun_s)
                loop.call_soon_threadsafe(charge)

        return await loop.run_in_executor(self.parsing, timed)
