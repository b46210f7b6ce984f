"""A broker that goes away and comes back under a running query."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Row, SparkSession

from tests.servers import Database, NatsServer
from tests.waiting import wait_until
from tests.worker.data_source.conftest import Feed, ids


def test_a_running_stream_goes_on_after_a_restart_of_the_broker(
    spark: SparkSession, source_database: Database, group: str, tmp_path: Path
) -> None:
    with NatsServer() as nats:
        feed = Feed(source_database, nats, group)
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
