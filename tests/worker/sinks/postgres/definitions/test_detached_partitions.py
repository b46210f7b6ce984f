"""The worker deletes rows of a detached partition by what the source reports of them, and runs nothing of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from psycopg import sql

from pgsluice.shared.broker.definition_log import DefinitionOutcome
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import TableDefined
from pgsluice.worker.definitions.judgement import judge
from pgsluice.worker.definitions.policy import DefinitionKind, Policies
from pgsluice.worker.sinks.postgres.definitions.alteration import Alteration
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables
from pgsluice.worker.sinks.sink import DefinitionUse
from tests.servers import Database
from tests.worker.definitions.definitions_of import column, partition, with_columns
from tests.worker.sinks.postgres.definitions.test_policies import PARTS, ROWS, SOURCE, TARGET, apply, arrival, ids

DELETING = Policies.parse("apply", {DefinitionKind.DETACH_PARTITION.value: "delete"})

HOSTILE = [
    "true; CREATE TABLE pwned ()",
    "(id = 1); CREATE TABLE pwned ()",
    "(make_pwned(id) IS NOT NULL)",
    "((id = 1) OR (make_pwned(id) IS NOT NULL))",
    "(id = 1::int or true)",
    "(id IN (SELECT make_pwned(1)))",
]


@pytest.fixture
def target(target_database: Database) -> Database:
    """With a function that leaves a trace."""
    target_database.execute(TARGET)
    target_database.execute(ROWS)
    target_database.execute(
        "CREATE FUNCTION make_pwned(bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN CREATE TABLE IF NOT EXISTS pwned ();"
        " RETURN 1; END $$; ALTER DATABASE " + target_database.dbname + " SET search_path = public"
    )
    return target_database


@pytest.mark.parametrize("condition", [*HOSTILE, None, ""])
def test_a_condition_that_does_more_than_compare_columns_stops_the_worker_and_is_not_run(
    target: Database, condition: str | None
) -> None:
    was = replace(PARTS, partitions=(replace(partition(1, "p"), constraint=condition),))
    event = TableDefined("ALTER TABLE", SOURCE)
    judgement = judge(arrival(event, was), DELETING, DefinitionUse.ALTERS)
    assert judgement.outcomes == (DefinitionOutcome.STOPPED,)
    assert "detached public.p from 'public.t'" in str(judgement.stop)
    assert "'pgsluice ddl accept 0/5000:3'" in str(judgement.stop)
    with pytest.raises(TerminalError, match="cannot be identified"):
        apply(target, DELETING, event, was)
    assert ids(target) == [1, 2]
    assert target.execute("SELECT to_regclass('pwned')") == [(None,)]


def test_an_alteration_is_one_statement_whatever_is_in_it(target: Database) -> None:
    more = column(4, "more", type_name="int4); CREATE TABLE pwned (a int4")
    apply(target, Policies(), TableDefined("ALTER TABLE", with_columns(*SOURCE.columns, more)), SOURCE)
    assert target.execute("SELECT to_regclass('pwned')") == [(None,)]
    with target.connect() as connection:
        alteration = Alteration(connection, KnownTables.of("group", "worker"), Policies())
        with pytest.raises(TerminalError, match="SQLSTATE 42601"):
            alteration._execute(sql.Composed([sql.SQL("CREATE TABLE one (); CREATE TABLE two ()")]), "t")


def test_inheriting_tables_of_the_target_keep_their_rows(target: Database) -> None:
    target.execute("CREATE TABLE own () INHERITS (t); INSERT INTO own (id, note) VALUES (1, 'own')")
    was = replace(PARTS, partitions=(replace(partition(1, "p"), constraint="(id = 1)"),))
    apply(target, DELETING, TableDefined("ALTER TABLE", SOURCE), was)
    assert target.execute("SELECT tableoid::regclass::text, id FROM t ORDER BY id") == [("own", 1), ("t", 2)]


KEYS = {
    "RANGE (i)": ("FROM (-5) TO (3)", "FROM (3) TO (MAXVALUE)"),
    "RANGE (m, i)": ("FROM (MINVALUE, MINVALUE) TO (2.5, 1)", "FROM (2.5, 1) TO (9, 9)"),
    "RANGE (d)": ("FROM ('2000-01-01') TO ('2000-02-01')",),
    "RANGE (at)": ("FROM ('2000-01-01 10:00+00') TO ('2000-02-01')",),
    "RANGE (v)": ("FROM ('a') TO ('b')",),
    "RANGE (c)": ("FROM ('a') TO ('b')",),
    "LIST (i)": ("IN (1)", "IN (-1, 2, NULL)", "IN (NULL)"),
    "LIST (v)": ("IN ('it''s', 'back\\slash')", "IN ('a')"),
    "LIST (t)": ("IN ('it''s', 'back\\slash', NULL)", "IN ('a')"),
    "LIST (b)": ("IN (true)", "IN (false, NULL)"),
    'LIST ("Odd ""x"" name")': ("IN ('sad')", "IN ('sad', 'Glad')"),
    "LIST (u)": ("IN ('00000000-0000-0000-0000-000000000001')",),
}
TABLE = """
(i int, m numeric(6,2), d date, at timestamptz, v varchar(20), c char(3), t text, b bool, "Odd ""x"" name" public."Mood", u uuid)
"""
VALUES = """
SELECT (ARRAY[-1, 0, 1, 2, 3, 7, NULL])[1 + n % 7], (ARRAY[-1, 2.5, 2.49, NULL])[1 + n % 4],
       (ARRAY['1999-12-31', '2000-01-15', NULL])[1 + n % 3]::date,
       (ARRAY['2000-01-01 09:59+00', '2000-01-01 10:00+00', NULL])[1 + n % 3]::timestamptz,
       (ARRAY['it''s', 'back\\slash', 'a', 'abc', 'b', NULL])[1 + n % 6], (ARRAY['a', 'abc', 'b', NULL])[1 + n % 4],
       (ARRAY['it''s', 'back\\slash', 'a', 'abc', 'b', NULL])[1 + n % 6], (ARRAY[true, false, NULL])[1 + n % 3],
       (ARRAY['sad', 'Glad', NULL])[1 + n % 3]::public."Mood",
       (ARRAY['00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002'])[1 + n % 2]::uuid
FROM generate_series(0, 100) n
"""


@pytest.mark.parametrize("key", KEYS)
def test_what_postgresql_tells_of_ranges_and_lists_deletes_the_partitions_rows(
    source_database: Database, target_database: Database, key: str
) -> None:
    names = ["i", "m", "d", "at", "v", "c", "t", "b", 'Odd "x" name', "u"]
    types = ["integer", "numeric", "date", "timestamp with time zone", "character varying(20)", "character(3)", "text", "boolean"]
    named = zip(names, [*types, "x", "uuid"], strict=True)
    columns = [column(number, name, type_name=kind) for number, (name, kind) in enumerate(named, 1)]
    for database in (source_database, target_database):
        database.execute("""CREATE TYPE public."Mood" AS ENUM ('sad', 'Glad')""")
    target_database.execute(f"CREATE TABLE t {TABLE}")
    for bound in (*KEYS[key], "DEFAULT"):
        made = "PARTITION OF p " + (bound if bound == "DEFAULT" else f"FOR VALUES {bound}")
        others = [f"CREATE TABLE o PARTITION OF p FOR VALUES {KEYS[key][0]}; "] if bound == "DEFAULT" else []
        source_database.execute(f"CREATE TABLE p {TABLE} PARTITION BY {key}; {''.join(others)}CREATE TABLE q {made}")
        if bound != "DEFAULT":
            source_database.execute("CREATE TABLE o PARTITION OF p DEFAULT")
        with source_database.connect() as connection:
            connection.execute("SET search_path = pg_catalog")
            [(condition,)] = connection.execute("SELECT pg_get_partition_constraintdef('public.q'::regclass)").fetchall()
        source_database.execute(f"INSERT INTO p {VALUES}")
        target_database.execute(f"TRUNCATE t; INSERT INTO t {VALUES}")
        kept = source_database.execute("SELECT x::text FROM o x ORDER BY 1")
        now = with_columns(*columns)
        was = replace(now, partitions=(replace(partition(1, "q"), constraint=condition),))
        assert judge(arrival(TableDefined("ALTER TABLE", now), was), DELETING, DefinitionUse.ALTERS).stop is None, condition
        apply(target_database, DELETING, TableDefined("ALTER TABLE", now), was)
        assert target_database.execute("SELECT x::text FROM t x ORDER BY 1") == kept, condition
        source_database.execute("DROP TABLE p")
        target_database.execute("DROP SCHEMA pgsluice CASCADE")
