"""What arrives in a target database, for the kinds of tables and changes that rivals trip over."""

from __future__ import annotations

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer

_TABLES = """
CREATE SCHEMA "Sales";
CREATE TYPE mood AS ENUM ('calm', 'angry');
CREATE TABLE "Sales"."Order ""x"" y" ("select" int, "Größe" numeric, mood mood, doc jsonb, tags text[], PRIMARY KEY ("select"));
CREATE TABLE pair (a int, b text, big text, note text, PRIMARY KEY (a, b));
ALTER TABLE pair ALTER big SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY, v float8, big text);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
CREATE TABLE keyless (v text, doc json);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE measured (id int PRIMARY KEY, doubled int GENERATED ALWAYS AS (id * 2) STORED, at timestamptz);
CREATE TABLE emptied (id int PRIMARY KEY);
"""

_FIRST = r"""
INSERT INTO "Sales"."Order ""x"" y" VALUES (1, 'NaN', 'calm', '{"n": 9007199254740993}', ARRAY['a', NULL, '{"']);
INSERT INTO "Sales"."Order ""x"" y" VALUES (2, 1e-20, NULL, NULL, '{}');
INSERT INTO pair SELECT n, 'k', repeat(md5(n::text), 200), E'tab\t, line\n, back\\slash' FROM generate_series(1, 5) n;
INSERT INTO whole VALUES (1, 'Infinity', repeat('w', 9000)), (2, '-0', ''), (3, 1.5, NULL);
INSERT INTO keyless VALUES ('same', '{"a":  1}'), ('same', '{"a":  1}'), ('', NULL), (NULL, NULL);
INSERT INTO measured VALUES (1, DEFAULT, '0044-03-15 BC'), (2, DEFAULT, 'infinity');
INSERT INTO emptied SELECT generate_series(1, 10);
"""

_SECOND = """
BEGIN;
UPDATE "Sales"."Order ""x"" y" SET mood = 'angry' WHERE "select" = 2;
UPDATE pair SET note = 'changed' WHERE a = 1;
UPDATE pair SET b = 'moved' WHERE a = 2;
UPDATE pair SET a = a + 100, big = 'short' WHERE a = 3;
DELETE FROM pair WHERE a = 4;
INSERT INTO pair VALUES (4, 'k', 'again', 'after its delete');
COMMIT;
UPDATE whole SET v = 2 WHERE id = 1;
UPDATE whole SET id = 30 WHERE id = 3;
DELETE FROM whole WHERE id = 2;
DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE v = 'same' LIMIT 1);
UPDATE keyless SET v = 'was null' WHERE v IS NULL;
UPDATE measured SET id = 20 WHERE id = 2;
TRUNCATE emptied;
INSERT INTO emptied VALUES (77);
"""

_NAMES = ('"Sales"."Order ""x"" y"', "pair", "whole", "keyless", "measured", "emptied")


def contents(database: Database) -> dict[str, list[str]]:
    return {name: sorted(row[0] for row in database.execute(f"SELECT t::text FROM {name} t")) for name in _NAMES}


def test_every_kind_of_table_is_equal_after_inserts_and_after_all_other_changes(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server, tables=["public.*", "Sales.*"])
    source_database.execute(_TABLES)
    target_database.execute("CREATE TYPE mood AS ENUM ('calm', 'angry')")
    target_database.execute(next(line for line in _TABLES.splitlines() if line.startswith("CREATE TABLE measured")))
    succeed(replicate(keys))
    source_database.execute(_FIRST)
    succeed(replicate(keys))
    succeed(apply(keys))
    assert contents(target_database) == contents(source_database)
    source_database.execute(_SECOND)
    succeed(replicate(keys))
    succeed(apply(keys))
    assert contents(target_database) == contents(source_database)


def test_a_row_of_20_megabytes_arrives_intact_through_the_default_max_payload(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server)
    source_database.execute("CREATE TABLE large (id int PRIMARY KEY, content text)")
    succeed(replicate(keys))
    source_database.execute("INSERT INTO large SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 625000) n")
    source_database.execute("INSERT INTO large VALUES (2, 'small')")
    succeed(replicate(keys))
    succeed(apply(keys))
    sizes = "SELECT id, octet_length(content), md5(content) FROM large ORDER BY id"
    assert target_database.execute(sizes) == source_database.execute(sizes)
    assert target_database.execute(sizes)[0][1] == 20_000_000
