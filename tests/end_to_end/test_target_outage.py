"""The target is away when the worker starts, dies under it, comes back without the worker's position."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

TRYING_AGAIN = "a batch could not be applied, trying again"


@pytest.fixture
def target() -> Iterator[Database]:
    with PostgresServer(durable=True) as server:
        yield server.create_database("target")


def failing_since(under_test: GroupUnderTest) -> str | None:
    """As `status` tells it; None while nothing fails."""
    with PgsluiceProcess("status", config=under_test.keys) as process:
        assert process.wait() == 0
        found = re.search(r"FAILING since ([^ ]+): the target", process.stdout())
    return found and found[1]


def test_the_worker_waits_for_a_target_that_is_away_loses_nothing_when_it_dies_and_refuses_one_without_its_position(
    source_database: Database, target: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    target.server.kill()

    def count() -> int:
        present = target.execute("SELECT to_regclass('t') IS NOT NULL")[0][0]
        return int(target.execute("SELECT count(*) FROM t")[0][0]) if present else 0

    with GroupUnderTest(configuration(group, source_database, target, nats_server)) as under_test:
        under_test.replicator.wait_for_log("replicating")
        under_test.worker.wait_for_log("the sink cannot be opened, trying again")
        source_database.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        target.server.start()
        wait_until(lambda: count() == 1000, deadline_s=60, what="the first rows at the target", interval_s=0.2)
        target.server.kill()
        source_database.execute("INSERT INTO t SELECT generate_series(1001, 1500)")
        under_test.worker.wait_for_log(TRYING_AGAIN)
        since = wait_until(lambda: failing_since(under_test), what="the reason in the status")
        attempts = under_test.worker.log().count(TRYING_AGAIN)
        wait_until(lambda: under_test.worker.log().count(TRYING_AGAIN) > attempts, what="another attempt")
        assert failing_since(under_test) == since
        target.server.start()
        wait_until(lambda: count() == 1500, deadline_s=60, what="all rows at the target", interval_s=0.2)
        wait_until(lambda: failing_since(under_test) is None, what="a status without trouble")
        target.server.restart()
        source_database.execute("DELETE FROM t WHERE id > 100")
        wait_until(lambda: count() == 100, deadline_s=60, what="the deletions at the target", interval_s=0.2)
        assert under_test.worker.is_running
        under_test.worker.terminate()
        assert under_test.worker.wait() == 0
        target.execute("DELETE FROM pgsluice.applied")
        under_test.worker.start()
        assert under_test.worker.wait() == 70
        assert "the sink has no position of worker 'postgres'" in under_test.worker.log().splitlines()[-1]
        assert count() == 100
