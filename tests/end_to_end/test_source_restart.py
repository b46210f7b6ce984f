"""The source dies without a word and comes back."""

from __future__ import annotations

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until


def test_the_replicator_reconnects_by_itself_after_kill_9_of_the_source(
    target_database: Database, nats_server: NatsServer, group: str
) -> None:
    with PostgresServer(durable=True) as server:
        source = server.create_database("source")
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with GroupUnderTest(configuration(group, source, target_database, nats_server)) as under_test:
            under_test.replicator.wait_for_log("replicating")
            source.execute("INSERT INTO t SELECT generate_series(1, 1000)")
            server.kill()
            server.start()
            source.execute("INSERT INTO t SELECT generate_series(1001, 1500)")
            wait_until(
                lambda: (
                    target_database.execute("SELECT to_regclass('t') IS NOT NULL")[0][0]
                    and target_database.execute("SELECT count(*) FROM t")[0][0] == 1500
                ),
                deadline_s=60,
                what="all rows at the target",
                interval_s=0.2,
            )
            assert under_test.replicator.is_running
