"""A group with changes, and a notebook's Spark session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from nats.aio.client import Client
from pyspark.sql import DataFrame, Row, SparkSession

import pgsluice
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.wire.names import GroupNames
from tests.borrowed_spark import environment_restored
from tests.replicated_group import Group
from tests.servers import Database, NatsServer

T = TypeVar("T")

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""To compile a query takes longer than to interpret one of a few rows."""


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """A notebook's, for all modules: Spark SQL takes ten seconds of CPU time to get warm."""
    settings = {"spark.master": "local[2]", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    with environment_restored():
        process = Spark("notebook", settings | INTERPRETED, "pyspark.daemon")
        process.start()
        session = SparkSession(process.context)
        pgsluice.register(session)
        yield session
        session.stop()
        process.close()


class Feed:
    """A source, and its group's changes as a notebook reads them."""

    def __init__(self, source: Database, nats: NatsSettings, group: str) -> None:
        self.nats = nats
        self.group = group
        self.options = {"nats-url": nats.url, "group": group}
        self.source = source
        self._replication = Group(group, source, nats)

    def publish(self, *statements: str) -> None:
        """Each statement is a transaction of its own; returns when all are in the stream."""
        for statement in statements:
            self._replication.source.execute(statement)
        self._replication.replicate()

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:
        return spark.read.format("pgsluice").options(**self.options).options(**spelled(options)).load()

    def rows(self, spark: SparkSession, **options: Any) -> list[Row]:
        rows: list[Row] = self.read(spark, **options).collect()
        return rows

    def stream(self, spark: SparkSession, **options: Any) -> DataFrame:
        return spark.readStream.format("pgsluice").options(**self.options).options(**spelled(options)).load()

    def ask(self, question: Callable[[Client, ChangeStream], Awaitable[T]]) -> T:
        """What ``question`` finds out, over a connection of its own."""

        async def asked() -> T:
            async with connected(self.nats, "test") as client:
                return await question(client, ChangeStream(client, GroupNames(self.group)))

        return asyncio.run(asked())


def spelled(options: dict[str, Any]) -> dict[str, str]:
    """``from_`` as ``from``, ``batch_size`` as ``batch-size``."""
    return {name.rstrip("_").replace("_", "-"): str(value) for name, value in options.items()}


@pytest.fixture
def feed(source_database: Database, nats_server: NatsServer, group: str) -> Feed:
    return Feed(source_database, nats_server.settings(), group)


def run(stream: DataFrame, checkpoint: Path) -> list[list[Row]]:
    """The batches of a query that reads what is available, and ends."""
    batches: list[list[Row]] = []
    writer = stream.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return [batch for batch in batches if batch]


def images(rows: list[Row]) -> list[tuple[str, Any, Any]]:
    """Operation, old and new row of each."""
    return [(row.operation, *(None if text is None else json.loads(text) for text in (row.before, row.after))) for row in rows]


def instant(moment: datetime) -> datetime:
    """Of a time that Spark gave, which is in the zone of the machine."""
    return moment.astimezone(UTC)


def ids(rows: list[Row]) -> list[int]:
    """The column ``id`` of the new rows."""
    return [json.loads(row.after)["id"] for row in rows]


def remove_up_to(feed: Feed, sequence: int) -> None:
    """As retention does."""

    async def purge(client: Client, stream: ChangeStream) -> None:
        await stream.purge_up_to(sequence)

    feed.ask(purge)
