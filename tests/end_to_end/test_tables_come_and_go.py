"""Many tables come, go and come again as others under a group that follows them all: each ends equal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until

TABLES = 16
DEADLINE_S = 240.0


def walk(source: Database, number: int) -> None:
    """A table comes with rows, is written to, goes as soon as it is published, and comes again with other columns and rows. The
    others join meanwhile."""
    name = f"walker_{number}"
    published = f"SELECT FROM pg_publication_tables WHERE tablename = '{name}'"
    source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    source.execute(f"INSERT INTO {name} SELECT n, 'first' FROM generate_series(1, 25) n")
    source.execute(f"UPDATE {name} SET v = 'updated' WHERE id < 5")
    wait_until(lambda: source.execute(published), deadline_s=DEADLINE_S, what="its publication")
    source.execute(f"DROP TABLE {name}")
    source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, w numeric, v text)")
    source.execute(f"INSERT INTO {name} SELECT n, n / 10.0, 'second' FROM generate_series(101, 125) n")
    source.execute(f"DELETE FROM {name} WHERE id > 120; INSERT INTO {name} VALUES (200, 1.5, 'last')")


def rows(database: Database, table: str) -> list[tuple[object, ...]] | None:
    """None where there is no such table."""
    if database.execute("SELECT to_regclass(%s) IS NULL", [table]) == [(True,)]:
        return None
    return database.execute(f"SELECT * FROM {table} ORDER BY 1")


def unequal(source: Database, target: Database, tables: list[str]) -> list[str]:
    return [table for table in tables if rows(source, table) != rows(target, table)]


def is_confirmed(source: Database) -> bool:
    """Whether the slot has come to where the source is now, or further."""
    return source.execute("SELECT bool_and(confirmed_flush_lsn >= pg_current_wal_flush_lsn()) FROM pg_replication_slots") == [
        (True,)
    ]


def test_tables_that_are_made_again_while_others_join_each_end_equal(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source, target = source_database, target_database
    source.execute("CREATE TABLE stays (id int PRIMARY KEY, v text); INSERT INTO stays VALUES (1, 'a')")
    modes = {"track-ddl": True, "copy-and-stream": True, "tables": "*.*", "check-interval": "2s"}
    names = ["stays", *(f"walker_{number}" for number in range(TABLES))]
    with GroupUnderTest(configuration(group, source, target, nats_server, **modes)) as running:
        wait_until(lambda: not unequal(source, target, ["stays"]), deadline_s=DEADLINE_S, what="the copy")
        with ThreadPoolExecutor(TABLES) as threads:
            list(threads.map(lambda number: walk(source, number), range(TABLES)))
        source.execute("INSERT INTO stays VALUES (2, 'b')")
        try:
            wait_until(lambda: not unequal(source, target, names), deadline_s=DEADLINE_S, what="equal tables", interval_s=0.5)
        except AssertionError:
            raise AssertionError(f"unequal: {unequal(source, target, names)}") from None
        assert running.replicator.is_running
        assert " ERROR " not in running.replicator.log()


def test_a_worker_that_is_behind_takes_nothing_of_the_table_that_had_the_name_before(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    """Its copies are applied before its changes."""
    source, target = source_database, target_database
    names = ["stays", "remade", "renamed"]
    for name in (*names, "other"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        source.execute(f"INSERT INTO {name} SELECT n, 'first' FROM generate_series(1, 10) n")
    modes = {"copy-and-stream": True, "tables": ",".join(names), "check-interval": "1s"}
    with GroupUnderTest(configuration(group, source, target, nats_server, **modes)) as running:
        wait_until(lambda: not unequal(source, target, names), deadline_s=DEADLINE_S, what="the copy")
        running.worker.terminate()
        assert running.worker.wait() == 0
        for name in ("remade", "renamed"):
            source.execute(f"UPDATE {name} SET v = 'late' WHERE id < 8; INSERT INTO {name} VALUES (99, 'late')")
        source.execute("BEGIN; DROP TABLE remade; CREATE TABLE remade (id int PRIMARY KEY, v text); COMMIT")
        source.execute("INSERT INTO remade VALUES (3, 'new'), (4, 'new')")
        source.execute("BEGIN; ALTER TABLE renamed RENAME TO away; ALTER TABLE other RENAME TO renamed; COMMIT")
        source.execute("UPDATE renamed SET v = 'new' WHERE id < 3")
        said = running.replicator.log
        wait_until(lambda: said().count("table is copied") == 5, deadline_s=DEADLINE_S, what="the copies")
        running.replicator.terminate()
        assert running.replicator.wait() == 0
        running.replicator.start()
        running.replicator.wait_for_log("replicating")
        for number in (100, 101, 102):
            source.execute(f"INSERT INTO renamed VALUES ({number}, 'after')")
            wait_until(lambda: is_confirmed(source), deadline_s=DEADLINE_S, what="a confirmation")
        running.worker.start()
        source.execute("INSERT INTO stays VALUES (11, 'last')")
        wait_until(lambda: not unequal(source, target, ["stays"]), deadline_s=DEADLINE_S, what="the changes")
        wait_until(lambda: not unequal(source, target, names), deadline_s=30, what="equal tables", interval_s=0.5)


def test_more_tables_than_the_server_has_locks_are_published(
    target_database: Database, nats_server: NatsServer, group: str
) -> None:
    """Their copy is not what is shown here, so the group only streams."""
    few = {"max_locks_per_transaction": "10", "max_connections": "20"}
    with PostgresServer(few) as server:
        source = server.create_database("source")
        for start in range(0, 500, 50):
            source.execute(";".join(f"CREATE TABLE many_{number} (id int PRIMARY KEY)" for number in range(start, start + 50)))
        keys = configuration(group, source, target_database, nats_server, tables="public.*")
        with GroupUnderTest(keys) as running:
            running.replicator.wait_for_log("replicating")
            assert source.execute("SELECT count(*) FROM pg_publication_tables") == [(500,)]


@pytest.mark.long
def test_tables_that_are_dropped_while_they_join_go_at_the_target_too(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    """Whatever a table's copy has come to when its schema goes."""
    source, target = source_database, target_database
    source.execute("CREATE TABLE stays (id int PRIMARY KEY, v text); INSERT INTO stays VALUES (1, 'a')")
    modes = {
        "track-ddl": True,
        "copy-and-stream": True,
        "tables": "*.*",
        "check-interval": "1s",
        "ddl-policy": {"drop-table": "drop"},
    }
    at_target = "SELECT relname FROM pg_class WHERE relname LIKE 'leaves%' AND relkind = 'r' ORDER BY 1"
    with GroupUnderTest(configuration(group, source, target, nats_server, **modes)) as running:
        wait_until(lambda: not unequal(source, target, ["stays"]), deadline_s=DEADLINE_S, what="the copy")
        for turn in range(4):
            tables = "; ".join(
                f"CREATE TABLE going.leaves_{turn}_{number} (id int PRIMARY KEY, v text);"
                f" INSERT INTO going.leaves_{turn}_{number} SELECT n, repeat('x', 500) FROM generate_series(1, 2000) n"
                for number in range(8)
            )
            target.execute("CREATE SCHEMA IF NOT EXISTS going")
            source.execute(f"CREATE SCHEMA going; {tables}")
            wait_until(lambda: target.execute(at_target), deadline_s=DEADLINE_S, what="one of them at the target")
            source.execute("DROP SCHEMA going CASCADE")
            source.execute(f"INSERT INTO stays VALUES ({turn + 2}, 'b')")
            wait_until(lambda: not unequal(source, target, ["stays"]), deadline_s=DEADLINE_S, what="what came after it")
            try:
                wait_until(lambda: not target.execute(at_target), deadline_s=45, what="their end at the target")
            except AssertionError:
                raise AssertionError(f"left in turn {turn}: {target.execute(at_target)}") from None
        assert running.replicator.is_running
