"""What is done to a server while it is recorded: together every message of the protocol, and every form of it.

``publication`` is what follows ``CREATE PUBLICATION name``. Each of ``statements`` is sent by itself, so it is a transaction
unless it holds several statements. ``tables`` are those whose rows a reader of the messages must end up with: none when the
messages alone cannot tell them.
"""

from __future__ import annotations

from dataclasses import dataclass

TOAST_VALUE = "repeat('0123456789', 210)"
"""Over the size from which PostgreSQL stores a value apart from its row, if compression is off."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    setup: str
    statements: tuple[str, ...]
    tables: tuple[str, ...]
    publication: str = "FOR ALL TABLES"


SCENARIOS = (
    Scenario(
        "values",
        """CREATE TABLE value (id int PRIMARY KEY, flag bool, amount numeric(12,2), ratio float8, note text, raw bytea,
             document jsonb, moment timestamptz, day date, duration interval, numbers int[], key uuid)""",
        (
            """INSERT INTO value VALUES (1, true, 12.50, 0.1, 'text', '\\x00ff', '{"a": [1, null]}', '2026-01-02 03:04:05.678+02',
                 '2026-01-02', '1 mon 2 days', '{1,NULL,3}', '00000000-0000-0000-0000-000000000001')""",
            "INSERT INTO value (id) VALUES (2)",
            "INSERT INTO value (id, note, raw, numbers) VALUES (3, '', '', '{}')",
            "INSERT INTO value (id, note) VALUES (4, E'tab\\tline\\nback\\\\slash \\\\N')",
            "INSERT INTO value (id, note) VALUES (5, 'Größe 数量 😀')",
            "INSERT INTO value (id, amount, ratio, moment) VALUES (6, 'NaN', '-Infinity', 'infinity')",
            "UPDATE value SET note = NULL WHERE id = 1",
            "UPDATE value SET note = 'again' WHERE id IN (1, 2)",
            "DELETE FROM value WHERE id = 3",
        ),
        ("value",),
    ),
    Scenario(
        "names",
        """CREATE SCHEMA "Schéma with space";
           CREATE TABLE "Schéma with space"."Or""der.s" ("select" int, "Größe" text, "a b" int, PRIMARY KEY ("a b", "select"))""",
        (
            """INSERT INTO "Schéma with space"."Or""der.s" VALUES (1, 'L', 10), (2, 'M', 20)""",
            """UPDATE "Schéma with space"."Or""der.s" SET "Größe" = 'XL' WHERE "select" = 1""",
            """DELETE FROM "Schéma with space"."Or""der.s" WHERE "a b" = 20""",
        ),
        ('"Schéma with space"."Or""der.s"',),
    ),
    Scenario(
        "user types",
        """CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN price AS numeric(8,2) CHECK (VALUE >= 0);
           CREATE TYPE pair AS (x int, y text);
           CREATE TABLE typed (id int PRIMARY KEY, mood mood, price price, pair pair, moods mood[])""",
        (
            """INSERT INTO typed VALUES (1, 'happy', 9.99, '(1,"a b")', '{sad,happy}')""",
            "UPDATE typed SET mood = 'sad'",
        ),
        ("typed",),
    ),
    Scenario(
        "replica identities",
        """CREATE TABLE by_key (a int, b int, note text, PRIMARY KEY (b, a));
           CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, note text);
           CREATE UNIQUE INDEX by_index_code ON by_index (code); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code;
           CREATE TABLE by_row (id int, note text); ALTER TABLE by_row REPLICA IDENTITY FULL;
           CREATE TABLE by_nothing (id int PRIMARY KEY, note text); ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
           CREATE TABLE keyless (id int, note text)""",
        (
            "INSERT INTO by_key VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, NULL)",
            "INSERT INTO by_index VALUES (1, 'x', 'a'), (2, 'y', NULL), (3, 'z', '')",
            "INSERT INTO by_row VALUES (1, 'same'), (1, 'same'), (NULL, NULL), (4, '')",
            "INSERT INTO by_nothing VALUES (1, 'a')",
            "INSERT INTO keyless VALUES (1, 'a'), (1, 'a')",
            "UPDATE by_key SET note = 'c' WHERE a = 1; UPDATE by_key SET a = 20 WHERE a = 2; DELETE FROM by_key WHERE a = 3",
            """UPDATE by_index SET id = 10 WHERE id = 1; UPDATE by_index SET code = 'yy' WHERE id = 2;
               DELETE FROM by_index WHERE id = 3""",
            """UPDATE by_row SET note = 'one' WHERE id = 1; UPDATE by_row SET id = 3 WHERE id IS NULL;
               DELETE FROM by_row WHERE id = 4""",
            "UPDATE by_row SET note = NULL WHERE ctid = (SELECT min(ctid) FROM by_row WHERE id = 1)",
        ),
        ("by_key", "by_index", "by_row", "by_nothing", "keyless"),
    ),
    Scenario(
        "unchanged toast",
        """CREATE TABLE toasted (id int PRIMARY KEY, note text, big text); ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;
           CREATE TABLE toasted_row (id int, big text); ALTER TABLE toasted_row ALTER big SET STORAGE EXTERNAL;
           ALTER TABLE toasted_row REPLICA IDENTITY FULL;
           CREATE TABLE toasted_key (big text PRIMARY KEY, note text); ALTER TABLE toasted_key ALTER big SET STORAGE EXTERNAL""",
        (
            f"INSERT INTO toasted VALUES (1, 'a', {TOAST_VALUE}), (2, 'b', NULL)",
            f"INSERT INTO toasted_row VALUES (1, {TOAST_VALUE})",
            f"INSERT INTO toasted_key VALUES ({TOAST_VALUE}, 'a')",
            "UPDATE toasted SET note = 'c'",
            "UPDATE toasted SET id = 3 WHERE id = 1",
            "UPDATE toasted_row SET id = 2",
            "UPDATE toasted_key SET note = 'b'",
            f"UPDATE toasted SET big = {TOAST_VALUE} || 'x' WHERE id = 3",
            "DELETE FROM toasted WHERE id = 2",
            "DELETE FROM toasted_key",
        ),
        ("toasted", "toasted_row", "toasted_key"),
    ),
    Scenario(
        "truncate",
        """CREATE TABLE parent (id serial PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent);
           CREATE TABLE apart (id int PRIMARY KEY)""",
        (
            "INSERT INTO parent SELECT FROM generate_series(1, 3); INSERT INTO child VALUES (1, 1); INSERT INTO apart VALUES (1)",
            "TRUNCATE apart",
            "INSERT INTO apart VALUES (2); TRUNCATE parent CASCADE; INSERT INTO parent VALUES (7)",
            "TRUNCATE child, apart RESTART IDENTITY",
            "INSERT INTO apart VALUES (3); TRUNCATE parent, child, apart RESTART IDENTITY CASCADE; INSERT INTO apart VALUES (4)",
        ),
        ("parent", "child", "apart"),
    ),
    Scenario(
        "transactions",
        "CREATE TABLE left_side (id int PRIMARY KEY, n int); CREATE TABLE right_side (id int PRIMARY KEY, n int)",
        (
            """INSERT INTO left_side SELECT i, 100 FROM generate_series(1, 40) i;
               INSERT INTO right_side SELECT id, -n FROM left_side""",
            """DO $$ BEGIN FOR i IN 1..20 LOOP
                 UPDATE left_side SET n = n + i WHERE id = i; UPDATE right_side SET n = n - i WHERE id = i;
               END LOOP; END $$""",
            """BEGIN; INSERT INTO left_side VALUES (50, 1); SAVEPOINT s; INSERT INTO left_side VALUES (51, 1); ROLLBACK TO s;
               INSERT INTO right_side VALUES (50, -1); COMMIT""",
            "DELETE FROM left_side WHERE id > 30; DELETE FROM right_side WHERE id > 30",
            "DELETE FROM left_side WHERE id > 1000",
        ),
        ("left_side", "right_side"),
    ),
    Scenario(
        "origin",
        "CREATE TABLE from_elsewhere (id int PRIMARY KEY); SELECT pg_replication_origin_create('elsewhere €')",
        (
            "SELECT pg_replication_origin_session_setup('elsewhere €')",
            "SELECT pg_replication_origin_xact_setup('1A/2B3C', '2026-01-02 03:04:05+00'); INSERT INTO from_elsewhere VALUES (1)",
            "SELECT pg_replication_origin_session_reset()",
            "INSERT INTO from_elsewhere VALUES (2)",
        ),
        ("from_elsewhere",),
    ),
    Scenario(
        "logical messages",
        "CREATE TABLE beside_messages (id int PRIMARY KEY)",
        (
            "SELECT pg_logical_emit_message(false, 'now', 'not transactional')",
            "SELECT pg_logical_emit_message(true, 'prefix €', '\\x00ff00'::bytea)",
            """INSERT INTO beside_messages VALUES (1); SELECT pg_logical_emit_message(true, '', '');
               INSERT INTO beside_messages VALUES (2)""",
            """BEGIN; SELECT pg_logical_emit_message(true, 'never', 'seen');
               SELECT pg_logical_emit_message(false, 'still', 'seen'); INSERT INTO beside_messages VALUES (3); ROLLBACK""",
        ),
        ("beside_messages",),
    ),
    Scenario(
        "schema changes",
        "CREATE TABLE evolving (id int PRIMARY KEY, old_name text, note varchar(10))",
        (
            "INSERT INTO evolving VALUES (1, 'a', 'b')",
            "ALTER TABLE evolving ADD COLUMN added int DEFAULT 7",
            "INSERT INTO evolving VALUES (2, 'a', 'b', 8)",
            "ALTER TABLE evolving ALTER note TYPE varchar(20)",
            "ALTER TABLE evolving RENAME old_name TO new_name; UPDATE evolving SET new_name = 'c' WHERE id = 1",
            "ALTER TABLE evolving DROP COLUMN note; INSERT INTO evolving VALUES (3, 'd', 9)",
            """INSERT INTO evolving VALUES (4, 'e', 1); ALTER TABLE evolving REPLICA IDENTITY FULL;
               UPDATE evolving SET added = 2 WHERE id = 4""",
        ),
        (),
    ),
    Scenario(
        "wide table",
        """DO $$ BEGIN
             EXECUTE (SELECT 'CREATE TABLE wide (id int PRIMARY KEY, ' || string_agg(format('column_%s int', i), ', ') || ')'
                      FROM generate_series(2, 300) i);
           END $$;
           CREATE TABLE without_columns ()""",
        ("INSERT INTO wide VALUES (1, 2, 3)", "UPDATE wide SET column_300 = 300", "INSERT INTO without_columns DEFAULT VALUES"),
        ("wide",),
    ),
    *(
        Scenario(
            f"partitions published {how}",
            """CREATE TABLE measured (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
               CREATE TABLE measured_2025 PARTITION OF measured FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
               CREATE TABLE measured_2026 (day date NOT NULL, id int NOT NULL);
               ALTER TABLE measured ATTACH PARTITION measured_2026 FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')""",
            (
                "INSERT INTO measured VALUES (1, '2025-05-05'), (2, '2026-06-06'), (3, '2026-07-07')",
                "UPDATE measured SET day = '2026-05-05' WHERE id = 1",
                "DELETE FROM measured WHERE id = 3",
            ),
            tables,
            f"FOR TABLE measured WITH (publish_via_partition_root = {via_root})",
        )
        for how, via_root, tables in (
            ("under the root", "true", ("measured",)),
            ("by themselves", "false", ("measured_2025", "measured_2026")),
        )
    ),
    Scenario(
        "filters and column lists",
        """CREATE TABLE filtered (id int PRIMARY KEY, n int, secret text);
           CREATE TABLE narrowed (id int PRIMARY KEY, a int, b int)""",
        (
            "INSERT INTO filtered VALUES (1, 5), (2, 15), (3, 25)",
            "INSERT INTO narrowed VALUES (1, 2, 3)",
            "UPDATE filtered SET id = 12 WHERE id = 2",
            "UPDATE filtered SET id = 300 WHERE id = 3",
            "UPDATE narrowed SET a = 4, b = 5",
        ),
        (),
        "FOR TABLE filtered WHERE (id < 100), TABLE narrowed (id, b)",
    ),
)
