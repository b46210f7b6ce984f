"""An administrator of one NATS, and a pipeline that is allowed there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.pipelines.pipeline_catalog import PipelineCatalog
from pgsluice.console.pipelines.pipeline_document import PipelineDocument
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.pipelines.pipeline_settings import CatalogSettings
from pgsluice.shared.wire.names import GroupNames
from tests.servers import Database, NatsServer, PgsluiceProcess

T = TypeVar("T")

GOOD: Mapping[str, object] = {
    "query": "SELECT id, v FROM t",
    "target": "analytics.t",
    "key": ["id"],
    "source": "shop",
    "sink": "warehouse",
}


class Administrator:
    """Of one NATS: a places file, its configuration files, and what anybody may put into the control bucket."""

    def __init__(self, nats: NatsServer, source: Database, directory: Path, user: str = "") -> None:
        self.nats, self.directory = nats, directory
        settings = source.settings
        given = {"host": settings.host, "port": settings.port, "dbname": settings.dbname, "user": user or settings.user}
        self.write("shop.yaml", given | {"password": "${SHOP_PASSWORD:-none}", "schema": "shop"})
        sink = {"kind": "postgres", "config": "warehouse.yaml", "targets": ["analytics.*"]}
        shop = {"config": "shop.yaml", "trusted": not user}  # the tests' own user is a superuser
        self.places = self.write("places.yaml", {"sources": {"shop": shop}, "sinks": {"warehouse": sink}})

    def write(self, name: str, content: Mapping[str, object]) -> str:
        path = self.directory / name
        path.write_text(yaml.safe_dump(dict(content)))
        return str(path)

    def put(self, name: str, content: Mapping[str, object]) -> None:
        """Behind the API's back."""
        kept = {key: value for key, value in content.items() if value is not None}
        document = PipelineDocument(name, kept)

        async def put(control: ControlBucket) -> object:
            store = DocumentStore(control, PipelineDocument)
            stored = await store.find(name)
            return await store.put(document, "mallory", None if stored is None else stored.revision)

        assert self._with(put) is not None

    def catalog(self, work: Callable[[PipelineCatalog], Awaitable[T]], file: str = "") -> T:
        settings = CatalogSettings(file, self.places)
        return self._with(lambda control: work(PipelineCatalog(settings, self.nats.settings(), None, control)))

    def run(self, *arguments: str, **options: Any) -> tuple[int, str]:
        keys = {"nats-url": self.nats.url, "pipelines-places": self.places} | options
        with PgsluiceProcess("run", *arguments, config=keys) as process:
            return process.wait(), process.log() + process.stdout()

    def has_stream(self, group: str) -> bool:
        async def state() -> bool:
            async with connected(self.nats.settings(), "tests") as client:
                return await SnapshotStream(client, GroupNames(group)).state() is not None

        return asyncio.run(state())

    def _with(self, work: Callable[[ControlBucket], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with connected(self.nats.settings(), "tests") as client:
                control = ControlBucket(client)
                await control.make(1)
                return await work(control)

        return asyncio.run(ask())
