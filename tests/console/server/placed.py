"""A server with places, as an administrator gives them, and a source with nine rows behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.console.pipelines.administrator import GOOD, Administrator
from tests.console.server.served import Served
from tests.servers import NatsServer, PostgresServer

TABLE = """
    CREATE SCHEMA shop;
    CREATE TABLE shop.t (id bigint PRIMARY KEY, v text);
    INSERT INTO shop.t SELECT n, 'v' FROM generate_series(1, 9) n
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A server with places, whose source has nine rows."""

    administrator: Administrator
    served: Served

    def put(self, client: httpx.Client, name: str, etag: str = "", **change: object) -> httpx.Response:
        content = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
        headers = {"If-Match": etag} if etag else {}
        return client.put(f"/pipelines/{name}", json={"yaml": yaml.safe_dump(content)}, headers=headers)

    def run(self, name: str, request: str = "") -> int:
        """As an executor does it."""
        return self.administrator.run(name, *([f"--request={request}"] if request else []))[0]


@contextmanager
def placed(
    nats: NatsServer, postgres: PostgresServer, directory: Path, database: str, pipelines: Mapping[str, object] | None = None
) -> Iterator[Place]:
    """``pipelines`` are those of a file that the server reads, too."""
    source = postgres.create_database(database)
    source.execute(TABLE)
    administrator = Administrator(nats, source, directory)
    try:
        options: dict[str, Any] = {"pipelines_places": administrator.places}
        if pipelines is not None:
            options["pipelines_config"] = administrator.write("pipelines.yaml", {"pipelines": pipelines})
        with Served(nats.url, directory, **options) as served:
            yield Place(administrator, served)
    finally:
        source.drop()
