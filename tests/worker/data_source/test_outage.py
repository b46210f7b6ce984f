"""A broker that is away: under a running query, and when one begins."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import TransientError
from pgsluice.worker.batches.broker_connection import process_connection
from pgsluice.worker.data_source import data_source
from pgsluice.worker.data_source.read_options import read_settings
from tests.servers import Database, NatsServer
from tests.servers.child import HOST, free_port
from tests.waiting import wait_until
from tests.worker.data_source.conftest import Feed, ids
from tests.worker.published_stream import publish_inserts


def test_a_running_stream_goes_on_after_a_restart_of_the_broker(
    spark: SparkSession, source_database: Database, group: str, tmp_path: Path
) -> None:
    with NatsServer() as nats:
        feed = Feed(source_database, nats.settings(), group)
        feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
        feed.publish("INSERT INTO t VALUES (1)")
        seen: list[Row] = []
        writer = feed.stream(spark).writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            wait_until(lambda: ids(seen) == [1], deadline_s=60, what="the first change")
            nats.kill()
            nats.start()
            feed.publish("INSERT INTO t VALUES (2)")
            wait_until(lambda: ids(seen) == [1, 2] or not query.isActive, deadline_s=60, what="the second change")
            assert query.exception() is None
        finally:
            query.stop()
    assert ids(seen) == [1, 2]


def test_a_query_that_begins_without_a_broker_ends_with_its_address(spark: SparkSession, group: str) -> None:
    port = free_port()
    options = {"group": group, "nats-url": f"nats://{HOST}:{port}", "nats-user": "app", "nats-password": "s3cret"}
    with pytest.raises(PySparkException, match=f"NATS at {HOST}:{port} does not answer") as caught:
        spark.read.format("pgsluice").options(**options).load().collect()
    assert "s3cret" not in str(caught.value)


@pytest.mark.long
def test_a_stream_waits_for_a_silent_broker_with_a_warning_and_not_for_ever(
    group: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks again and again; between the questions a query can be stopped."""

    async def publish(nats: NatsServer) -> None:
        async with connected(nats.settings(), "test") as client:
            await publish_inserts(client, group, 3)

    def warnings() -> int:
        return len(
            [each for each in caplog.records if each.levelno == logging.WARNING and "does not answer" in each.getMessage()]
        )

    with NatsServer() as nats:
        asyncio.run(publish(nats))
        options = {"group": group, "nats-url": nats.url}
        feed = data_source.ChangeFeed(options)
        reader = feed.streamReader(feed.schema())
        start = reader.initialOffset()
        nats.kill()
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert warnings() == 1
        nats.start()
        wait_until(lambda: reader.latestOffset(start, ReadAllAvailable()) != start, deadline_s=30, what="the broker again")
        monkeypatch.setattr(data_source, "PATIENCE_S", 0.0)
        nats.kill()
        before = warnings()
        assert reader.latestOffset(start, ReadAllAvailable()) == start, "the patience begins anew"
        assert warnings() == before + 1
        with pytest.raises(TransientError, match="does not answer"):
            reader.latestOffset(start, ReadAllAvailable())
        process_connection(read_settings(options).nats, group, "reader").close()
