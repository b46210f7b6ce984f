"""Tables that the source rewrites, of which no row tells: they are copied again by themselves, and the target is made fit."""

from __future__ import annotations

from functools import partial

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v int, gone text);
CREATE TABLE goes_on (id int PRIMARY KEY);
INSERT INTO t SELECT n, n, 'x' FROM generate_series(1, 500) n;
"""

REWRITES = [
    "ALTER TABLE t ALTER v TYPE bigint USING v::bigint * 10000000000; INSERT INTO t VALUES (501, 501)",
    "ALTER TABLE t ADD COLUMN r float8 NOT NULL DEFAULT random(), DROP COLUMN gone; DELETE FROM t WHERE id = 7",
    "INSERT INTO t VALUES (502, 502); ALTER TABLE t ADD COLUMN s serial; UPDATE t SET v = 0 WHERE id = 2",
    "ALTER TABLE t ALTER v TYPE text USING 'it was ' || v; ALTER TABLE t RENAME v TO words",
]

COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY 1
"""
DEADLINE_S = 120.0


def are_equal(source: Database, target: Database) -> bool:
    if target.execute("SELECT to_regclass('t') IS NULL OR to_regclass('goes_on') IS NULL") == [(True,)]:
        return False
    columns = source.execute(COLUMNS)
    if target.execute(COLUMNS) != columns:
        return False
    names = ", ".join(str(name) for name, _ in columns)
    return target.execute(f"SELECT {names} FROM t ORDER BY id") == source.execute(f"SELECT {names} FROM t ORDER BY id")


@pytest.mark.long
def test_a_rewritten_table_is_copied_again_while_others_go_on(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source, target = source_database, target_database
    source.execute(TABLES)
    modes = {"copy-and-stream": True, "track-ddl": True, "tables": "t,goes_on"}
    with GroupUnderTest(configuration(group, source, target, nats_server, **modes)):
        wait_until(partial(are_equal, source, target), deadline_s=DEADLINE_S, what="the first copy")
        for number, statements in enumerate(REWRITES):
            source.execute(statements)
            source.execute(f"INSERT INTO goes_on VALUES ({number})")
            wait_until(partial(are_equal, source, target), deadline_s=DEADLINE_S, what=statements)
        expected = source.execute("SELECT id FROM goes_on ORDER BY id")
        wait_until(
            lambda: target.execute("SELECT id FROM goes_on ORDER BY id") == expected,
            deadline_s=DEADLINE_S,
            what="the other table",
        )
