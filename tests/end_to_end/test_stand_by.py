"""A second worker of the same name takes over from one that was killed; and a worker ends as a whole when a part of it does."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.shared.broker.connection import connected
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.state_bucket import seal_bucket
from tests.waiting import wait_until


@pytest.mark.timeout(600)
def test_a_stand_by_takes_over_under_load_and_a_worker_ends_when_its_report_does(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    RandomLoad.create_tables(source_database)
    keys = configuration(group, source_database, target_database, nats_server)
    load = RandomLoad(source_database, seed=7)

    with GroupUnderTest(keys) as under_test, PgsluiceProcess("worker", "postgres", config=keys) as stand_by:
        under_test.replicator.wait_for_log("replicating")
        with load:
            wait_until(lambda: applied_sequence(target_database) > 0, deadline_s=120, what="the first batch at the target")
            first, second = sorted((under_test.worker, stand_by), key=is_standing_by)
            second.wait_for_log("waiting for the lease")
            seen = applied_sequence(target_database)
            wait_until(lambda: applied_sequence(target_database) > seen + 20, deadline_s=120, what="more batches")
            first.kill()
            load.stop()
        wait_until(
            lambda: not second.is_running or checksums(source_database) == checksums(target_database),
            deadline_s=300,
            what="equal tables",
            interval_s=0.5,
        )
        assert second.is_running, second.log()
        asyncio.run(seal(nats_server, group))
        source_database.execute("INSERT INTO journal VALUES ('something to report')")
        assert second.wait() == 70
        assert "JetStream refuses the state bucket" in second.log()


def is_standing_by(worker: PgsluiceProcess) -> bool:
    return "waiting for the lease" in worker.log()


def applied_sequence(target: Database) -> int:
    """0 before the worker made its tables."""
    if target.execute("SELECT to_regclass('pgsluice.applied')") == [(None,)]:
        return 0
    return int(str((target.execute("SELECT sequence FROM pgsluice.applied") or [(0,)])[0][0]))


async def seal(nats: NatsServer, group: str) -> None:
    async with connected(nats.settings(), "test") as client:
        await seal_bucket(client, group)
