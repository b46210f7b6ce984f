"""Tables of a busy group are paused one after the other while its worker is killed: others go on, and all is equal at the end."""

from __future__ import annotations

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.end_to_end.test_stand_by import applied_sequence
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

FIRST, SECOND = "items", "journal"


@pytest.mark.long  # tests/worker/batches/test_lanes.py pauses tables by chance in a model of the target
@pytest.mark.timeout(900)
def test_paused_tables_wait_while_others_go_on_and_catch_up_whoever_is_killed(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source, target = source_database, target_database
    RandomLoad.create_tables(source)
    keys = configuration(group, source, target, nats_server)
    where = {"group": group, "nats-url": nats_server.url}

    def order(*arguments: str) -> str:
        with PgsluiceProcess(*arguments, config=where) as process:
            code = process.wait(180)
            said = process.stdout()
            assert code == 0, said + process.log()
            return said

    def go_on_without(*paused: str) -> None:
        before, resting = applied_sequence(target), [rows(target, table) for table in paused]
        wait_until(lambda: applied_sequence(target) > before + 20, deadline_s=120, what="changes of others")
        assert [rows(target, table) for table in paused] == resting

    with GroupUnderTest(keys) as running:
        running.replicator.wait_for_log("replicating")
        with RandomLoad(source, seed=14, most_rows=500) as load:
            wait_until(lambda: applied_sequence(target) > 20, deadline_s=120, what="the first batches")
            wait_until(lambda: rows(target, FIRST) and rows(target, SECOND), deadline_s=120, what="rows")
            assert f"table public.{FIRST}: paused" in order("pause", "--table", FIRST, "--wait", "120s")
            go_on_without(FIRST)
            running.worker.kill()
            running.worker.start()
            go_on_without(FIRST)
            order("pause", "--table", SECOND, "--wait", "120s", "--reason", "a test")
            assert "PAUSED       table public.journal" in order("status")
            go_on_without(FIRST, SECOND)
            assert "@" in behind(target), "they were left out at different places"
            running.worker.kill()
            running.worker.start()
            order("resume", "--table", FIRST)
            go_on_without(FIRST, SECOND)  # they catch up together
            order("resume", "--table", SECOND)
            running.worker.kill()
            running.worker.start()
            load.stop()
        order("resume", "--table", "*", "--wait", "180s")
        wait_until(
            lambda: not running.worker.is_running or checksums(source) == checksums(target),
            deadline_s=300,
            what="equal tables",
            interval_s=0.5,
        )
        assert running.worker.is_running, running.worker.log()
        wait_until(lambda: behind(target) == "", deadline_s=60, what="one place for all tables")


def rows(target: Database, table: str) -> str:
    [(digest,)] = target.execute(f"SELECT coalesce(md5(string_agg(t::text, ',' ORDER BY t::text)), '') FROM {table} t")
    return str(digest)


def behind(target: Database) -> str:
    [(catch_up,)] = target.execute("SELECT catch_up FROM pgsluice.applied")
    return str(catch_up)
