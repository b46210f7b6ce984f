"""A Spark cluster that has no cores for us: both processes say so, and can be stopped."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import lease_key
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer

WAITING = "waiting for Spark executors"


@pytest.mark.timeout(400)
def test_a_process_that_waits_for_executors_says_so_and_obeys_sigterm(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    keys = configuration(group, source_database, target_database, nats_server, **{"copy-and-stream": True})
    keys["spark"] = {
        "master": "local-cluster[0,1,512]",
        "memory": "512m",
        "spark.authenticate": "true",
        "spark.authenticate.secret": "shared by the cluster",
        "spark.network.crypto.enabled": "true",
    }
    with GroupUnderTest(keys) as under_test:
        for process in (under_test.replicator, under_test.worker):
            process.wait_for_log(WAITING, deadline_s=120)
        assert asyncio.run(lease(nats_server, group)) is not None
        for process in (under_test.worker, under_test.replicator):
            process.terminate()
        assert (under_test.worker.wait(), under_test.replicator.wait()) == (0, 0)
    assert asyncio.run(lease(nats_server, group)) is None


async def lease(nats: NatsServer, group: str) -> Entry[bytes] | None:
    async with connected(nats.settings(), "test") as client:
        return await StateBucket(client, GroupNames(group)).get(lease_key("postgres"))
