"""Tables that the source alters while a group follows them, with ``track-ddl``: the target is altered where the rows are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE addr AS (street text);
CREATE DOMAIN posint AS int CHECK (VALUE > 0) NOT NULL;
"""
TABLES = f"""{TYPES}
CREATE TABLE typed (id int PRIMARY KEY, home addr, others addr[], n posint);
INSERT INTO typed VALUES (1, '(here)', '{{(there)}}', 1);
CREATE TABLE notes (id int PRIMARY KEY, note varchar(10), gone int, felt mood);
CREATE TABLE plain (id int PRIMARY KEY, v text NOT NULL);
INSERT INTO notes VALUES (1, 'a', 1, 'sad'), (2, 'b', 2, 'happy');
INSERT INTO plain VALUES (1, 'x');
"""

ALTERED = [
    "ALTER TYPE addr RENAME TO place; INSERT INTO typed VALUES (2, '(x)', NULL, 2)",
    "ALTER TYPE place ADD ATTRIBUTE zip int; INSERT INTO typed VALUES (3, '(y,3)', '{\"(z,4)\"}', 3)",
    "ALTER TYPE place RENAME ATTRIBUTE street TO road; ALTER TYPE place DROP ATTRIBUTE zip CASCADE",
    "ALTER DOMAIN posint DROP CONSTRAINT posint_check; ALTER DOMAIN posint DROP NOT NULL",
    "INSERT INTO typed VALUES (4, '(w)', NULL, -1), (5, NULL, NULL, NULL)",
    "INSERT INTO notes VALUES (3, 'c', 3, 'sad')",
    "INSERT INTO notes VALUES (4, 'd', 4, 'sad'); ALTER TABLE notes ADD COLUMN n int DEFAULT 7; INSERT INTO notes VALUES (5)",
    "ALTER TABLE notes ADD COLUMN at timestamptz NOT NULL DEFAULT now()",
    "INSERT INTO notes (id, note) VALUES (6, 'six'); UPDATE notes SET n = 8 WHERE id = 1",
    "ALTER TABLE notes RENAME COLUMN note TO remark; UPDATE notes SET remark = 'renamed' WHERE id = 2",
    "ALTER TABLE notes DROP COLUMN gone; INSERT INTO notes (id, remark) VALUES (7, 'seven')",
    "ALTER TABLE notes ADD COLUMN gone text; UPDATE notes SET gone = 'again' WHERE id = 7",
    "ALTER TABLE notes ALTER remark TYPE varchar(20); UPDATE notes SET remark = 'longer than ten' WHERE id = 7",
    "ALTER TABLE notes ALTER remark TYPE text",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    "ALTER TABLE plain ALTER v DROP NOT NULL; INSERT INTO plain VALUES (2, NULL)",
    "ALTER TABLE plain DROP CONSTRAINT plain_pkey; ALTER TABLE plain ADD COLUMN k int NOT NULL DEFAULT 1",
    "ALTER TABLE plain ADD PRIMARY KEY (k, id); INSERT INTO plain VALUES (2, 'two', 2)",
    "CREATE SCHEMA shop; ALTER TABLE plain SET SCHEMA shop; ALTER TABLE shop.plain RENAME TO goods",
    "INSERT INTO shop.goods VALUES (3, 'three', 3); DELETE FROM shop.goods WHERE id = 1",
]

COLUMNS = """
SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname IN ('public', 'shop') AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2, 3
"""
KEYS = """
SELECT c.conrelid::regclass::text, pg_get_constraintdef(c.oid) FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
JOIN pg_namespace n ON n.oid = t.relnamespace WHERE c.contype = 'p' AND n.nspname IN ('public', 'shop') ORDER BY 1
"""
ROWS = ["SELECT id, remark, n, at::text, gone, felt::text FROM notes ORDER BY id", "SELECT * FROM shop.goods ORDER BY k, id"]
ROWS.append("SELECT t::text FROM typed t ORDER BY id")


def test_the_target_is_altered_in_the_order_of_the_rows(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute(TABLES)
    target_database.execute(TYPES)
    keys = configuration(group, source_database, target_database, nats_server, **{"track-ddl": True, "copy-and-stream": True})
    succeed(replicate(keys))
    succeed(apply(keys))
    for statements in ALTERED:
        with source_database.connect(autocommit=False) as connection:
            connection.execute(statements)
            connection.commit()
    succeed(replicate(keys))
    succeed(apply(keys))
    for query in (COLUMNS, KEYS, *ROWS):
        assert target_database.execute(query) == source_database.execute(query)


def definitions_of(keys: dict[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """What ``pgsluice ddl log`` tells: table, changes, and what the worker ``postgres`` did."""
    outcome = succeed(Outcome(PgsluiceProcess("ddl", "log", "--json", config=keys), 30))
    told = [json.loads(line) for line in outcome.stdout.splitlines()]
    return [(each["table"], each["changes"], each["workers"]["postgres"]["outcomes"]) for each in told]


def position_of_the_last(keys: dict[str, Any]) -> str:
    outcome = succeed(Outcome(PgsluiceProcess("ddl", "log", "--json", "--limit", "1", config=keys), 30))
    return str(json.loads(outcome.stdout)["position"])


def accept(keys: dict[str, Any], named: str) -> None:
    succeed(Outcome(PgsluiceProcess("ddl", "accept", named, config=keys), 30))


SIMPLE = "CREATE TABLE t (id int PRIMARY KEY, v text, gone text); INSERT INTO t VALUES (1, 'a', 'x')"


@pytest.fixture
def keys(source_database: Database, target_database: Database, nats_server: NatsServer, group: str) -> dict[str, Any]:
    """Of a group whose target holds what the source does, and the first definitions."""
    source_database.execute(SIMPLE)
    made = configuration(group, source_database, target_database, nats_server, **{"track-ddl": True, "copy-and-stream": True})
    succeed(replicate(made))
    succeed(apply(made))
    return made


def test_what_the_target_refuses_stops_the_worker_with_the_statement_and_nothing_of_the_transaction(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    target_database.execute("CREATE VIEW of_gone AS SELECT gone FROM t")
    source_database.execute("INSERT INTO t VALUES (2, 'b', 'y'); ALTER TABLE t DROP COLUMN gone; INSERT INTO t VALUES (3, 'c')")
    succeed(replicate(keys))
    outcome = apply(keys)
    assert outcome.code == 70
    assert 'ALTER TABLE "public"."t" DROP COLUMN "gone"' in outcome.log
    assert "2BP01" in outcome.log
    assert target_database.execute("SELECT id FROM t") == [(1,)]
    target_database.execute("DROP VIEW of_gone")
    succeed(apply(keys))
    assert target_database.execute("SELECT * FROM t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]


def test_what_the_target_refused_is_in_the_log_and_not_tried_again_when_it_was_accepted(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    target_database.execute(
        "CREATE VIEW of_gone AS SELECT gone FROM t; ALTER TABLE t ADD COLUMN early text, ADD COLUMN other int"
    )
    source_database.execute("ALTER TABLE t ADD COLUMN early text DEFAULT '7'; INSERT INTO t VALUES (2, 'b', 'y', '8')")
    source_database.execute("ALTER TABLE t DROP COLUMN gone; INSERT INTO t VALUES (3, 'c')")
    source_database.execute("ALTER TABLE t ADD COLUMN other text DEFAULT 'no number'; INSERT INTO t VALUES (4, 'd', '8', '9')")
    succeed(replicate(keys))
    outcome = apply(keys)
    assert outcome.code == 70
    assert "something there needs it, like a view or a rule" in outcome.log
    assert [outcomes for _, _, outcomes in definitions_of(keys)][1] == ["stopped"]
    assert target_database.execute("SELECT id, early FROM t ORDER BY id") == [(1, "7"), (2, "8")]
    accept(keys, "public.t")
    outcome = apply(keys)
    assert outcome.code == 70
    assert (
        "added column 'other' of type text to 'public.t', and the target has one of that name whose type is integer"
        in outcome.log
    )
    accept(keys, position_of_the_last(keys))
    succeed(apply(keys))
    assert [outcomes for _, _, outcomes in definitions_of(keys)] == [["applied"], ["accepted"], ["accepted"]]
    assert target_database.execute("SELECT id, gone, other FROM t ORDER BY id") == [
        (1, "x", None),
        (2, "y", None),
        (3, None, None),
        (4, None, 9),
    ]


@pytest.mark.long
def test_a_lock_at_the_target_is_waited_for_and_told(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    keys = keys | {"target-lock-timeout": "1s"}
    source_database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 3")
    succeed(replicate(keys))
    with target_database.connect(autocommit=False) as reader:
        reader.execute("SELECT FROM t")
        with PgsluiceProcess("worker", "postgres", "--until-sequence", "current", config=keys) as worker:
            worker.wait_for_log("a lock on 'public.t' at the target is held by another session")
            reader.rollback()
            assert worker.wait(60) == 0, worker.log()
    assert target_database.execute("SELECT * FROM t") == [(1, "a", "x", 3)]


def test_a_definition_that_somebody_forged_is_passed_over_and_told(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    group = keys["group"]
    source_database.execute(f"CREATE ROLE {(plain := group.replace('-', '_'))} LOGIN")
    try:
        with source_database.connect() as connection:
            connection.execute(f"SET ROLE {plain}")
            forged = '{"v":1,"token":"guess","kind":"gone","tag":"DROP TABLE","oid":1,"schema":"public","name":"t"}'
            connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", [f"pgsluice.ddl.{group}", forged])
        source_database.execute("INSERT INTO t VALUES (2, 'b', 'y')")
        assert "other programs emitted unsigned DDL messages" in succeed(replicate(keys)).log
    finally:
        source_database.execute(f"DROP ROLE {plain}")
    succeed(apply(keys))
    assert target_database.execute("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    assert definitions_of(keys) == []
    status = succeed(Outcome(PgsluiceProcess("status", config=keys), 30))
    assert "FORGED 1 unsigned DDL messages" in status.stdout


def test_a_rewritten_table_stops_the_worker_before_anything_of_the_transaction(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    source_database.execute("INSERT INTO t VALUES (2, 'b', 'y'); ALTER TABLE t ALTER v TYPE bytea USING v::bytea")
    succeed(replicate(keys | {"recopy-altered": False}))
    outcome = apply(keys)
    assert outcome.code == 70
    assert "the source rewrote table 'public.t'" in outcome.log
    assert target_database.execute("SELECT id FROM t") == [(1,)]


POLICIES = {
    "kept drop-column": "keep",
    "dropped drop-table": "drop",
    "parted detach-partition": "delete",
    "cast rewrite": "cast",
}
MANY = """
CREATE TABLE kept (id int PRIMARY KEY, gone text NOT NULL);
CREATE TABLE dropped (id int PRIMARY KEY);
CREATE TABLE stays (id int PRIMARY KEY);
CREATE TABLE cast_ (id int PRIMARY KEY, n int);
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
INSERT INTO kept VALUES (1, 'x'); INSERT INTO dropped VALUES (1); INSERT INTO stays VALUES (1);
INSERT INTO cast_ VALUES (1, 1); INSERT INTO parted VALUES (1), (11);
"""


@pytest.mark.long
def test_what_is_done_about_a_definition_is_the_users_choice(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute(MANY.replace("cast_", '"cast"'))
    modes = {"track-ddl": True, "copy-and-stream": True, "recopy-altered": False, "ddl-policy": POLICIES}
    keys = configuration(group, source_database, target_database, nats_server, **modes)
    succeed(replicate(keys))
    succeed(apply(keys))
    for statement in (
        "ALTER TABLE kept DROP COLUMN gone; INSERT INTO kept VALUES (2)",
        "DROP TABLE dropped, stays",
        'ALTER TABLE "cast" ALTER n TYPE bigint; INSERT INTO "cast" VALUES (2, 1::bigint << 40)',
        "ALTER TABLE parted DETACH PARTITION parted_1; INSERT INTO parted VALUES (12)",
    ):
        source_database.execute(statement)
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target_database.execute("SELECT * FROM kept ORDER BY id") == [(1, "x"), (2, None)]
    assert target_database.execute("SELECT to_regclass('dropped') IS NULL, to_regclass('stays') IS NULL") == [(True, False)]
    assert target_database.execute('SELECT *, pg_typeof(n)::text FROM "cast" ORDER BY id') == [
        (1, 1, "bigint"),
        (2, 1 << 40, "bigint"),
    ]
    assert target_database.execute("SELECT id FROM parted ORDER BY id") == [(11,), (12,)]


@pytest.mark.long
def test_a_person_is_asked_where_the_user_wants_it(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    source_database.execute("ALTER TABLE t ADD COLUMN n int")
    succeed(replicate(keys))
    outcome = apply(keys | {"ddl": "stop"})
    assert outcome.code == 70
    assert "wants an operator to decide about" in outcome.log
    target_database.execute("ALTER TABLE t ADD COLUMN n int")
    source_database.execute("INSERT INTO t VALUES (2, 'b', 'y', 3)")
    succeed(replicate(keys))
    succeed(apply(keys | {"ddl": "stop", "ddl-policy": {"t add-column": "ignore"}}))
    assert target_database.execute("SELECT * FROM t ORDER BY id") == [(1, "a", "x", None), (2, "b", "y", 3)]


def test_columns_that_the_target_is_not_to_have_are_left_out_of_its_rows(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    source_database.execute("INSERT INTO t VALUES (2, 'b', 'y')")
    source_database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 7, ADD COLUMN secret text")
    source_database.execute("INSERT INTO t VALUES (3, 'c', 'z', 1, 's'); UPDATE t SET v = 'B', secret = 's' WHERE id = 2")
    source_database.execute("UPDATE t SET id = 30, secret = 's' WHERE id = 3; DELETE FROM t WHERE id = 1")
    succeed(replicate(keys))
    outcome = succeed(apply(keys | {"ddl-policy": {"public.t add-column": "ignore"}}))
    assert target_database.execute("SELECT * FROM t ORDER BY id") == [(2, "B", "y"), (30, "c", "z")]
    assert outcome.log.count("columns that the target does not have are left out") >= 1
    assert "n, secret" in outcome.log


def test_every_definition_is_in_the_log_with_what_the_worker_did_and_stays_there(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    for statement in (
        "ALTER TABLE t ADD COLUMN n int DEFAULT 73151",
        "ALTER TABLE t RENAME COLUMN v TO w; UPDATE t SET w = 'b'",
        "CREATE INDEX ON t (n)",
        "ALTER TABLE t ALTER n SET DEFAULT 73152",
        "ALTER TABLE t DROP COLUMN gone",
    ):
        source_database.execute(statement)
    succeed(replicate(keys))
    before = [(table, changes) for table, changes, _ in definitions_of(keys)]
    assert before == [
        ("public.t", ["added column n integer"]),
        ("public.t", ["renamed column v to w"]),
        ("public.t", ["nothing that rows carry"]),
        ("public.t", ["dropped column gone"]),
    ]
    assert {words for _, _, outcomes in definitions_of(keys) for words in outcomes} == {"not reached yet"}
    succeed(apply(keys | {"ddl-policy": {"drop-column": "keep"}}))
    assert [outcomes for _, _, outcomes in definitions_of(keys)] == [["applied"], ["applied"], ["applied"], ["kept"]]
    shown = succeed(Outcome(PgsluiceProcess("ddl", "log", config=keys), 30)).stdout
    assert "postgres: kept" in shown
    assert "7315" not in shown
    source_database.execute("INSERT INTO t VALUES (9, 'i', 1)")
    succeed(replicate(keys))
    assert [(table, changes) for table, changes, _ in definitions_of(keys)] == before


def test_a_person_accepts_what_the_worker_stopped_for(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    source_database.execute("UPDATE t SET v = '1'")
    source_database.execute("ALTER TABLE t ALTER v TYPE int USING 7 * v::int; INSERT INTO t VALUES (2, 2, 'y')")
    succeed(replicate(keys | {"recopy-altered": False}))
    outcome = apply(keys)
    assert outcome.code == 70
    assert "the source rewrote table 'public.t'" in outcome.log
    assert "'pgsluice ddl accept " in outcome.log
    assert [outcomes for _, _, outcomes in definitions_of(keys)] == [["stopped"], ["not reached yet"]]
    target_database.execute("ALTER TABLE t ALTER v TYPE int USING 7 * v::int")
    accept(keys, "public.t")
    succeed(apply(keys))
    assert target_database.execute("SELECT id, v FROM t ORDER BY id") == [(1, 7), (2, 2)]
    assert [outcomes for _, _, outcomes in definitions_of(keys)] == [["accepted"], ["applied"]]


def test_a_capture_that_fails_leaves_the_statement_alive_and_stops_the_worker_with_what_to_do(
    keys: dict[str, Any], source_database: Database, target_database: Database
) -> None:
    describe = f"pgsluice.describe_{keys['group'].replace('-', '_')}"
    arguments = "(relation oid, is_published boolean, made oid[]) RETURNS jsonb LANGUAGE sql"
    broken = f"CREATE OR REPLACE FUNCTION {describe}{arguments} AS 'SELECT (1/0)::text::jsonb'"
    source_database.execute(broken)
    source_database.execute("ALTER TABLE t ADD COLUMN n int; INSERT INTO t VALUES (2, 'b', 'y', 3)")
    assert source_database.execute("SELECT n FROM t WHERE id = 2") == [(3,)]
    succeed(replicate(keys))
    outcome = apply(keys)
    assert outcome.code == 70
    assert "the source could not describe the effect of ALTER TABLE (at " in outcome.log
    assert "SQLSTATE 22012" in outcome.log
    assert "compare the tables of source and target" in outcome.log
    assert target_database.execute("SELECT id FROM t") == [(1,)]
    target_database.execute("ALTER TABLE t ADD COLUMN n int")
    accept(keys, position_of_the_last(keys))
    succeed(apply(keys))
    assert target_database.execute("SELECT id, n FROM t ORDER BY id") == [(1, None), (2, 3)]


RULES = "tables:\n  t:\n    - {type: transform, column: v, parameters: {type: mask, mask_char: '*'}}\n"


@pytest.mark.long
def test_a_new_column_of_a_masked_table_is_held_until_a_person_decides(
    keys: dict[str, Any], source_database: Database, target_database: Database, tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    keys = keys | {"rules-config": str(tmp_path / "rules.yaml"), "new-columns": "hold"}
    source_database.execute("ALTER TABLE t ADD COLUMN secret text; INSERT INTO t VALUES (2, 'bb', 'y', 's')")
    source_database.execute("INSERT INTO t VALUES (3, 'cc', 'z', 's')")
    succeed(replicate(keys))
    assert "a new column is left out of rows until an operator decides" in succeed(apply(keys)).log
    source_database.execute("UPDATE t SET secret = 'other' WHERE id = 3")
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target_database.execute("SELECT * FROM t ORDER BY id") == [(1, "a", "x"), (2, "**", "y"), (3, "**", "z")]
    assert definitions_of(keys) == [("public.t", ["added column secret text"], ["held"])]
    accept(keys, "t")
    target_database.execute("ALTER TABLE t ADD COLUMN secret text")
    source_database.execute("INSERT INTO t VALUES (4, 'dd', 'w', 'let through')")
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target_database.execute("SELECT secret FROM t ORDER BY id") == [(None,), (None,), (None,), ("let through",)]


@pytest.mark.long
def test_a_stop_that_was_asked_for_stops_a_sink_of_lines_too_until_it_is_accepted(
    keys: dict[str, Any], source_database: Database
) -> None:
    keys = keys | {"ddl-policy": {"t add-column": "stop"}, "column-ids": True}
    succeed(apply(keys, "stdout"))
    source_database.execute(
        "ALTER TABLE t RENAME COLUMN v TO w; ALTER TABLE t ADD COLUMN n int; INSERT INTO t VALUES (2, 'b', 'y', 3)"
    )
    succeed(replicate(keys))
    stopped = apply(keys, "stdout")
    assert stopped.code == 70
    assert stopped.stdout == ""
    accept(keys, position_of_the_last(keys))
    lines = [json.loads(line) for line in succeed(apply(keys, "stdout")).stdout.splitlines()]
    assert [line["operation"] for line in lines] == ["DDL", "DDL", "INSERT"]
    assert lines[-1]["columns"] == {"id": 1, "w": 2, "gone": 3, "n": 4}
