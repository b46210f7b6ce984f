"""A table is added to a running group: the others go on while it is copied, and it joins them whole."""

from __future__ import annotations

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

TABLES = """
CREATE TABLE goes_on (id int PRIMARY KEY, v text);
CREATE TABLE added (id int PRIMARY KEY, v text);
CREATE TABLE keyless (id int, v text);
CREATE TABLE held (id int);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO added SELECT n, 'copied' FROM generate_series(1, 1000) n;
INSERT INTO keyless SELECT n, 'copied' FROM generate_series(1, 1000) n;
INSERT INTO goes_on VALUES (0, 'first');
"""
ADDED = ("added", "keyless")
DEADLINE_S = 120.0


class Load:
    """Transactions that write into every table."""

    def __init__(self, source: Database, target: Database) -> None:
        self.source, self.target = source, target
        self.number = 0

    def write(self) -> None:
        self.number += 1
        n = self.number
        self.source.execute(
            f"BEGIN; INSERT INTO goes_on VALUES ({n}, 'new'); INSERT INTO added VALUES ({1000 + n}, 'new');"
            f"UPDATE added SET v = 'changed {n}' WHERE id = {n}; INSERT INTO keyless VALUES ({1000 + n}, 'new');"
            f"DELETE FROM keyless WHERE id = {n}; COMMIT"
        )

    def arrives(self) -> None:
        """What was written last into the table that was there before."""
        row = f"SELECT FROM goes_on WHERE id = {self.number}"
        wait_until(
            lambda: is_there(self.target, "goes_on") and self.target.execute(row),
            deadline_s=DEADLINE_S,
            what="the change of the other table",
        )

    def write_and_see(self) -> None:
        self.write()
        self.arrives()


def is_there(database: Database, table: str) -> bool:
    return database.execute("SELECT to_regclass(%s) IS NOT NULL", [table]) == [(True,)]


def rows(database: Database, table: str) -> list[tuple[object, ...]]:
    return database.execute(f"SELECT id, v FROM {table} ORDER BY id, v")


def behind(target: Database) -> str:
    [(catch_up,)] = target.execute("SELECT catch_up FROM pgsluice.applied")
    return str(catch_up)


@pytest.mark.long
def test_others_go_on_while_a_table_is_copied_whoever_is_killed_meanwhile(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source, target = source_database, target_database
    source.execute(TABLES)
    keys = configuration(group, source, target, nats_server, **{"copy-and-stream": True, "tables": "goes_on"})
    load = Load(source, target)
    with GroupUnderTest(keys) as running:
        load.write_and_see()
        load.write_and_see()  # one of the two, at least, is no part of the copy
        with source.connect(autocommit=False) as open_transaction:
            open_transaction.execute("INSERT INTO held VALUES (1)")  # a snapshot waits for it
            running.replicator.kill()
            running.replicator = PgsluiceProcess("replicator", config=keys | {"tables": f"goes_on,{','.join(ADDED)}"})
            running.replicator.start()
            running.replicator.wait_for_log("exporting a snapshot")
            load.write_and_see()
            wait_until(lambda: behind(target), what="a place for the tables that are behind")
            place = behind(target)
            running.worker.kill()
            load.write()
            running.worker.start()
            load.arrives()
            running.replicator.kill()
            running.replicator.start()
            load.write_and_see()
            assert behind(target) == place
            open_transaction.commit()
        while not is_there(target, "keyless"):
            load.write_and_see()
        running.worker.kill()
        running.worker.start()
        wait_until(lambda: not behind(target), deadline_s=DEADLINE_S, what="the tables join the others")
        load.write_and_see()
        for table in ("goes_on", *ADDED):
            assert rows(target, table) == rows(source, table)


@pytest.mark.long
def test_a_worker_that_ends_by_itself_has_taken_all_tables_along(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source, target = source_database, target_database
    source.execute(TABLES)
    keys = configuration(group, source, target, nats_server, **{"copy-and-stream": True})
    load = Load(source, target)
    succeed(replicate(keys | {"tables": "goes_on"}))
    load.write()
    succeed(replicate(keys | {"tables": "goes_on"}))
    succeed(apply(keys))
    succeed(replicate(keys | {"tables": "goes_on,added,keyless"}))
    load.write()
    succeed(replicate(keys | {"tables": "goes_on,added,keyless"}))
    succeed(apply(keys))
    assert behind(target) == ""
    for table in ("goes_on", *ADDED):
        assert rows(target, table) == rows(source, table)
