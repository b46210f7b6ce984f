"""A batch that takes longer than a process may stand still: it moves, so the worker is healthy all the time."""

from __future__ import annotations

import time

import pytest

from pgsluice.shared.metrics.health import STILL_S
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.endpoints import address_of, ask
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

ROWS = 40_000
ROW_S = 0.002

SLOW = f"""
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep({ROW_S}); RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow();
    ALTER TABLE t ENABLE ALWAYS TRIGGER slow;
"""


@pytest.mark.long  # it takes longer than a process may stand still
def test_a_transaction_that_takes_the_target_minutes_leaves_the_worker_healthy(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    for database in (source_database, target_database):
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    target_database.execute(SLOW)
    keys = configuration(group, source_database, target_database, nats_server, **{"metrics-listen": "127.0.0.1:0"})
    with GroupUnderTest(keys) as running:
        running.replicator.wait_for_log("replicating")
        running.worker.wait_for_log("reading")
        address = address_of(running.worker)
        source_database.execute(f"INSERT INTO t SELECT generate_series(1, {ROWS})")
        began_at = time.monotonic()
        ill: list[bytes] = []

        def is_applied() -> bool:
            health = ask(address, "/healthz")
            if health.status != 200:
                ill.append(health.body)
            return target_database.execute("SELECT count(*) FROM t") == [(ROWS,)]

        wait_until(is_applied, deadline_s=600, what="the rows at the target", interval_s=1.0)
        assert time.monotonic() - began_at > STILL_S
        assert ill == []
