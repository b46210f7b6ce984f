"""Very many definitions: of a start with many tables, of a migration of many statements."""

from __future__ import annotations

import psutil
import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

TABLES = 1207
STATEMENTS = 400


def create(database: Database, tables: int, *, rows: bool) -> None:
    for first in range(0, tables, 100):
        with database.connect() as connection:
            for number in range(first, min(first + 100, tables)):
                connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v text)".encode())
                if rows:
                    connection.execute(f"INSERT INTO t{number} VALUES (1, 'a')".encode())


def cpu_s(running: GroupUnderTest) -> float:
    """Returns the CPU time of the group's processes and their children, which other work on the machine does not change."""
    roots = [psutil.Process(each.pid) for each in (running.replicator, running.worker)]
    each = [process for root in roots for process in (root, *root.children(recursive=True))]
    return sum(sum(process.cpu_times()[:2]) for process in each)


@pytest.mark.long
def test_a_group_of_many_tables_is_ready_with_little_work(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    """The target's tables are there."""
    create(source_database, TABLES, rows=True)
    create(target_database, TABLES, rows=False)
    keys = configuration(group, source_database, target_database, nats_server, **{"track-ddl": True})
    with GroupUnderTest(keys) as running:
        running.replicator.wait_for_log("replicating", 600)
        source_database.execute(f"INSERT INTO t{TABLES - 1} VALUES (2, 'last')")
        wait_until(lambda: target_database.execute(f"SELECT count(*) FROM t{TABLES - 1}") == [(1,)], deadline_s=600)
        worked_s = cpu_s(running)
    print("worked for", worked_s, "s")
    assert worked_s < 15


@pytest.mark.long
def test_a_migration_of_many_statements_is_little_work(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    tables = 20
    create(source_database, tables, rows=True)
    create(target_database, tables, rows=False)
    keys = configuration(group, source_database, target_database, nats_server, **{"track-ddl": True})
    with GroupUnderTest(keys) as running:
        running.replicator.wait_for_log("replicating")
        for number in range(tables):
            source_database.execute(f"INSERT INTO t{number} VALUES (2, 'first')")
        last = f"SELECT count(*) FROM t{tables - 1}"
        wait_until(lambda: target_database.execute(last) == [(1,)], deadline_s=120)
        before_s = cpu_s(running)
        with source_database.connect() as connection:
            for number in range(STATEMENTS // 2):
                connection.execute(f"ALTER TABLE t{number % tables} ADD COLUMN c{number} int DEFAULT {number}".encode())
                connection.execute(f"ALTER TABLE t{number % tables} ALTER c{number} SET DEFAULT 7".encode())
                connection.execute(f"INSERT INTO t{number % tables} (id) VALUES ({number + 3})".encode())
        source_database.execute("INSERT INTO t0 (id) VALUES (0)")
        wait_until(lambda: target_database.execute("SELECT count(*) FROM t0 WHERE id = 0") == [(1,)], deadline_s=300)
        worked_s = cpu_s(running) - before_s
    rows = "SELECT t::text FROM t0 t WHERE id > 1 ORDER BY id"
    assert target_database.execute(rows) == source_database.execute(rows)
    print("worked for", worked_s, "s")
    assert worked_s < 10
