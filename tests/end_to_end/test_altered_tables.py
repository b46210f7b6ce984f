"""Tables that the source alters while a group follows them: the worker goes on, or says what to do and goes on then."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, apply, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess

COPY_DEADLINE_S = 180.0

TABLES = """
CREATE TABLE notes (id int PRIMARY KEY, note text);
CREATE TABLE wide (id int PRIMARY KEY, a text, b int, c text);
CREATE TABLE orders (id int, placed date, note text, PRIMARY KEY (id, placed)) PARTITION BY RANGE (placed);
CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE lost (id int PRIMARY KEY, note text);
INSERT INTO notes VALUES (1, 'a'), (2, 'b');
INSERT INTO wide VALUES (1, 'a', 7, 'c'), (3, 'a', 8, 'c');
INSERT INTO orders VALUES (1, '2026-01-31', 'first');
INSERT INTO lost VALUES (1, 'a'), (2, 'b'), (3, 'c');
"""

ALTERED = """
INSERT INTO notes VALUES (3, 'c');
CREATE SCHEMA archive;
ALTER TABLE notes RENAME TO remarks;
ALTER TABLE remarks SET SCHEMA archive;
UPDATE archive.remarks SET note = 'B' WHERE id = 2;
DELETE FROM archive.remarks WHERE id = 1;

UPDATE wide SET c = 'before';
ALTER TABLE wide DROP COLUMN a, DROP COLUMN b, DROP COLUMN c;
ALTER TABLE wide ADD COLUMN b text;
INSERT INTO wide VALUES (2, 'twenty');
UPDATE wide SET b = 'ten' WHERE id = 1;
UPDATE wide SET b = NULL WHERE id = 3;

CREATE TABLE orders_2 (gone int, note text, placed date NOT NULL, id int NOT NULL);
ALTER TABLE orders_2 DROP COLUMN gone;
ALTER TABLE orders ATTACH PARTITION orders_2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO orders VALUES (2, '2026-02-01', 'by the root'), (3, '2026-02-02', 'to be moved'), (5, '2026-02-05', 'to be deleted');
INSERT INTO orders_2 (id, placed, note) VALUES (4, '2026-02-03', 'by the leaf');
UPDATE orders SET note = 'moved', placed = '2026-01-15' WHERE id = 3;
DELETE FROM orders WHERE id = 5;
ALTER TABLE orders DETACH PARTITION orders_1;
INSERT INTO orders_1 VALUES (6, '2026-01-20', 'no longer of the table');
INSERT INTO orders VALUES (7, '2026-02-20', 'after the other leaf went');

UPDATE lost SET id = 20 WHERE id = 2;
DELETE FROM lost WHERE id = 1;
"""

REMEDIES = {
    "'public.notes' of the source is called 'archive.remarks' now": (
        'CREATE SCHEMA archive; ALTER TABLE "public"."notes" SET SCHEMA "archive";'
        ' ALTER TABLE "archive"."notes" RENAME TO "remarks"'
    ),
    "column 'b'": "ALTER TABLE wide ALTER b TYPE text",
}


def copy_and_stream(keys: dict[str, object]) -> None:
    with PgsluiceProcess("replicator", "--copy-and-stream", "--until-lsn", "current", config=keys) as replicator:
        assert replicator.wait(COPY_DEADLINE_S) == 0, replicator.log()


def apply_with_remedies(keys: dict[str, object], target: Database) -> Outcome:
    """As a person would who does what the last line says."""
    left = dict(REMEDIES)
    while left:
        outcome = apply(keys)
        assert outcome.code == 70, outcome.log
        last_line = outcome.log.splitlines()[-1]
        [named] = [fact for fact in left if fact in last_line]
        target.execute(left.pop(named))
    return succeed(apply(keys))


@pytest.mark.long
def test_tables_that_are_renamed_and_altered_and_partitions_that_come_and_go(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server, **{"max-dead-letters": 0})
    source_database.execute(TABLES)
    copy_and_stream(keys)
    succeed(apply(keys))
    target_database.execute("DELETE FROM lost WHERE id < 3")
    source_database.execute(ALTERED)
    copy_and_stream(keys | {"tables": ["archive.remarks", "wide", "orders", "lost"]})
    applied = apply_with_remedies(keys, target_database)
    for table in ("archive.remarks", "lost"):
        rows = f"SELECT t::text FROM {table} t ORDER BY 1"
        expected = source_database.execute(rows)
        assert target_database.execute(rows) == expected, table
    assert target_database.execute("SELECT id, b FROM wide ORDER BY id") == [(1, "ten"), (2, "twenty"), (3, None)]
    there = [row[0] for row in target_database.execute("SELECT id FROM orders ORDER BY id")]
    assert there == [1, 2, 3, 4, 7]
    assert "changes met no row in a table that was copied: source and target differ" in applied.log
    names = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('public', 'archive') ORDER BY 1"
    assert [row[0] for row in target_database.execute(names)] == [
        "archive.remarks",
        "public.lost",
        "public.orders",
        "public.wide",
    ]
    with PgsluiceProcess("status", "--json", config=keys) as status:
        assert status.wait() == 0, status.log()
        [worker] = json.loads(status.stdout())["workers"]
    # the update of the key sent the whole row, so it was inserted; only the delete met none
    missed = [(each["table"], each["updates"], each["deletes"], each["diverged"]) for each in worker["missed"]]
    assert missed == [("public.lost", 0, 1, True)]
