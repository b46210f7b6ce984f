"""A group that is started before anything happens at its source, as containers are."""

from __future__ import annotations

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer
from tests.waiting import wait_until


def test_a_worker_that_finds_nothing_to_read_waits_and_applies_what_comes_later(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    keys = configuration(group, source_database, target_database, nats_server)
    with GroupUnderTest(keys) as under_test:
        under_test.replicator.wait_for_log("replicating")
        under_test.worker.wait_for_log("reading  worker=postgres")
        source_database.execute("INSERT INTO t SELECT generate_series(1, 100)")
        wait_until(
            lambda: (
                target_database.execute("SELECT to_regclass('t') IS NOT NULL")[0][0]
                and target_database.execute("SELECT count(*) FROM t")[0][0] == 100
            ),
            deadline_s=60,
            what="the rows at the target",
            interval_s=0.2,
        )
        assert under_test.worker.is_running
