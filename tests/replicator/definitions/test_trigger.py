"""What runs within everybody's statements: in its place, harmless, and believed only when it is ours."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgsluice.shared.wire.definition import SIGNED_BYTES, DefinitionMessage, DefinitionUnknown, TableDefined, believed
from pgsluice.shared.wire.names import PAD_PREFIX, GroupNames
from tests.replicator.definitions.captured import Stream, install, tables_of
from tests.servers import Database, PostgresServer
from tests.servers.child import PrivateDirectory, unprivileged_user

ROUNDS = 20
ALTERATIONS = "INSERT INTO t VALUES ({n}); ALTER TABLE t ADD c{n} int; INSERT INTO t VALUES (-{n})"


@pytest.fixture
def role(source: Database) -> Iterator[str]:
    """A role that may log in and make tables, and nothing else."""
    name = f"plain_{uuid.uuid4().hex[:8]}"
    source.execute(f"CREATE ROLE {name} LOGIN; GRANT CREATE ON SCHEMA public TO {name}")
    yield name
    source.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def connect_as(source: Database, role: str) -> psycopg.Connection[Any]:
    return psycopg.connect(source.server.dsn(source.dbname), user=role, autocommit=True)


def kinds(lines: list[str]) -> list[str]:
    """The first letter of each line but of the Relations."""
    return [line[0] for line in lines if not line.startswith("R ")]


def test_a_message_stands_between_the_rows_every_time(stream: Stream) -> None:
    lines = stream.after("BEGIN; " + "; ".join(ALTERATIONS.format(n=n) for n in range(1, ROUNDS + 1)) + "; COMMIT")
    assert kinds(lines) == ["I", "t", "I"] * ROUNDS
    in_subtransactions = "".join(
        f"SAVEPOINT s; ALTER TABLE t DROP COLUMN c{n}; RELEASE SAVEPOINT s; INSERT INTO t VALUES ({n + 100});"
        for n in range(1, ROUNDS + 1)
    )
    assert kinds(stream.after(f"BEGIN; {in_subtransactions} COMMIT")) == ["t", "I"] * ROUNDS


def test_without_the_pad_rows_come_before_the_message(stream: Stream, names: GroupNames) -> None:
    """Which shows that the pad does something, and that the test above can fail."""
    [(emit,)] = stream.database.execute(f"SELECT pg_get_functiondef('pgsluice.{names.in_source('emit')}'::regproc)")
    pad = f"PERFORM pg_logical_emit_message(true, '{PAD_PREFIX}', ''::bytea);"
    assert pad in emit
    stream.database.execute(emit.replace(pad, ""))
    lines = stream.after("BEGIN; " + "; ".join(ALTERATIONS.format(n=n) for n in range(1, ROUNDS + 1)) + "; COMMIT")
    assert sorted(kinds(lines)) == sorted(["I", "t", "I"] * ROUNDS)
    assert kinds(lines) != ["I", "t", "I"] * ROUNDS


def test_a_failure_of_ours_is_none_of_the_statement_and_is_told(stream: Stream, names: GroupNames) -> None:
    stream.database.execute(f"DROP TABLE pgsluice.{names.in_source('pattern')}")
    warnings: list[str] = []
    with stream.database.connect() as connection:
        connection.add_notice_handler(lambda diagnostic: warnings.append(str(diagnostic.message_primary)))
        connection.execute("INSERT INTO t VALUES (1); ALTER TABLE t ADD c int; INSERT INTO t VALUES (2)")
        connection.execute("DROP TABLE t")
    lines = stream.read()
    assert lines == ["R t(*a,b)", "I t 1,NULL", "unknown ALTER TABLE 42P01", "R t(*a,b,c)", "I t 2,NULL,NULL", "gone t"]
    assert warnings == ["pgsluice cannot tell what ALTER TABLE did (SQLSTATE 42P01)"]


def test_a_statement_lives_although_nothing_can_be_told(stream: Stream, names: GroupNames) -> None:
    stream.database.execute(f"DROP TABLE pgsluice.{names.in_source('token')}")
    assert stream.after("ALTER TABLE t ADD c int; INSERT INTO t VALUES (1)") == ["R t(*a,b,c)", "I t 1,NULL,NULL"]


def test_a_cancel_is_not_taken_for_a_failure(stream: Stream, names: GroupNames) -> None:
    describe = f"pgsluice.{names.in_source('describe')}(relation oid, is_published boolean, made oid[])"
    stream.database.execute(
        f"CREATE OR REPLACE FUNCTION {describe} RETURNS jsonb LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$"
    )
    with stream.database.connect() as connection:
        connection.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("ALTER TABLE t ADD c int")
    assert stream.read() == []


def test_an_owner_who_has_no_right_to_anything_of_ours_alters_a_table(stream: Stream, role: str) -> None:
    stream.database.execute(f"ALTER TABLE t OWNER TO {role}")
    stream.read()
    with connect_as(stream.database, role) as connection:
        connection.execute("ALTER TABLE t ADD c int; INSERT INTO t VALUES (1)")
    assert stream.read() == ["table t(*1:a:integer!, 2:b:text, 3:c:integer)", "R t(*a,b,c)", "I t 1,NULL,NULL"]


def test_what_is_installed_need_not_be_a_superuser_s(stream: Stream, role: str) -> None:
    """Managed services let others create event triggers."""
    stream.database.execute(
        "DO $$ DECLARE o text; BEGIN FOR o IN SELECT 'FUNCTION ' || p.oid::regprocedure FROM pg_proc p WHERE pronamespace = "
        "'pgsluice'::regnamespace UNION ALL SELECT 'TABLE ' || c.oid::regclass FROM pg_class c WHERE relkind = 'r' AND "
        f"relnamespace = 'pgsluice'::regnamespace LOOP EXECUTE format('ALTER %s OWNER TO {role}', o); END LOOP; END $$;"
        f"GRANT USAGE ON SCHEMA pgsluice TO {role}"
    )
    stream.database.execute("CREATE SCHEMA hidden; ALTER TABLE t SET SCHEMA hidden; REVOKE ALL ON hidden.t FROM PUBLIC")
    stream.read()
    assert stream.after(
        "ALTER TABLE hidden.t ADD c int", "CREATE TYPE m AS ENUM ('a'); ALTER TABLE hidden.t ADD m m", "DROP TYPE m CASCADE"
    ) == [
        "table hidden.t(*1:a:integer!, 2:b:text, 3:c:integer)",
        "table hidden.t(*1:a:integer!, 2:b:text, 3:c:integer, 4:m:public.m)",
        "table hidden.t(*1:a:integer!, 2:b:text, 3:c:integer)",
    ]


def test_sessions_that_replicate_are_told_of_too(stream: Stream) -> None:
    assert stream.after("SET session_replication_role = replica; ALTER TABLE t ADD c int") == [
        "table t(*1:a:integer!, 2:b:text, 3:c:integer)"
    ]


def test_a_message_that_anybody_emits_is_not_signed(stream: Stream, source: Database, names: GroupNames, role: str) -> None:
    token = install(source, names)
    forged = DefinitionMessage("0" * len(token), DefinitionUnknown("ALTER TABLE", "42P01"))
    with connect_as(source, role) as connection:
        connection.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", [names.definitions_prefix, forged.encode()])
        connection.execute("CREATE TABLE mine (a int)")
        for statement in (
            f"SELECT token FROM pgsluice.{names.in_source('token')}",
            f"SELECT pgsluice.{names.in_source('emit')}('table', 'x', '{{}}')",
            f"SELECT pgsluice.{names.in_source('note')}('mine')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    stream.after("ALTER TABLE t ADD c int")
    signed = [
        DefinitionMessage(found, event).is_signed_with(token) for found, event in zip(stream.tokens, stream.events, strict=True)
    ]
    assert (len(signed), signed) == (2, [False, True])


def test_the_beginning_of_a_long_message_shows_that_it_is_signed(stream: Stream, source: Database, names: GroupNames) -> None:
    """With names of the most bytes, each of which JSON writes as six."""
    token, longest = install(source, names), "\x01" * 63
    columns = ", ".join(f"column_{n}_with_a_name_of_many_letters int" for n in range(100))
    stream.after(f'CREATE TYPE "{longest[1:]}" AS ENUM (); CREATE DOMAIN d AS "{longest[1:]}"; ALTER TABLE t ADD m d')
    stream.after(f'ALTER TABLE t RENAME TO "{longest}"', f'ALTER TABLE "{longest}" ADD {columns.replace(", ", ", ADD ")}')
    stream.after(f'ALTER DOMAIN d RENAME TO "{longest[2:]}"')
    assert any(len(content) > SIGNED_BYTES for content in stream.contents)
    assert all(believed(content[:SIGNED_BYTES], token) is not None for content in stream.contents)
    assert [isinstance(believed(content[:SIGNED_BYTES], token), DefinitionUnknown) for content in stream.contents] == [
        len(content) > SIGNED_BYTES for content in stream.contents
    ]


def test_nobody_can_have_the_owner_of_the_capture_run_something(stream: Stream, names: GroupNames, role: str) -> None:
    """A temporary view has precedence over the catalog where the search path does not name pg_temp."""

    def who_ran() -> set[str]:
        with connect_as(stream.database, role) as connection:
            for catalog in ("pg_publication", "pg_inherits"):
                connection.execute(f"CREATE TEMP VIEW {catalog} AS SELECT * FROM pg_catalog.{catalog} WHERE public.run() = 0")
            connection.execute("CREATE TABLE public.mine (a int); ALTER TABLE public.mine ADD b int; DROP TABLE public.mine")
            connection.execute("SELECT count(*) FROM pg_temp.pg_publication")
            return {name for (name,) in connection.execute("SELECT DISTINCT name::text FROM public.ran_as")}

    stream.database.execute("CREATE TABLE ran_as (name name); GRANT ALL ON ran_as TO PUBLIC")
    with connect_as(stream.database, role) as connection:
        connection.execute(
            "CREATE FUNCTION run() RETURNS int LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO public.ran_as VALUES (current_user); RETURN 0; END $$"
        )
    assert who_ran() == {role}
    stream.database.execute(f"ALTER FUNCTION pgsluice.{names.in_source('ddl')} SET search_path = pg_catalog")
    assert who_ran() == {role, stream.database.server.user}, "the attempt is none"


SHAPING = (
    "SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Tokyo'; SET intervalstyle = 'sql_standard'; SET bytea_output = 'escape';"
    "SET extra_float_digits = -15; SET array_nulls = off; SET standard_conforming_strings = off; SET search_path = shop"
)


def test_a_value_reads_the_same_whatever_the_session_sets(stream: Stream) -> None:
    stream.after("CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('sad')")
    stream.after(
        f"{SHAPING}; ALTER TABLE public.t ADD at timestamptz DEFAULT '2026-01-31 00:00:00+00',"
        " ADD span interval DEFAULT '1 day 2h', ADD bytes bytea DEFAULT decode('00ff', 'hex'),"
        " ADD f float8 DEFAULT 0.1::float8 + 0.2, ADD m mood DEFAULT 'sad'"
    )
    [table] = tables_of(stream.events)
    assert {column.name: (column.type_name, column.missing) for column in table.columns[2:]} == {
        "at": ("timestamp with time zone", "2026-01-31 00:00:00+00"),
        "span": ("interval", "1 day 02:00:00"),
        "bytes": ("bytea", "\\x00ff"),
        "f": ("double precision", "0.30000000000000004"),
        "m": ("shop.mood", "sad"),
    }


def test_nobody_waits_for_a_partition_that_somebody_holds(stream: Stream, names: GroupNames) -> None:
    stream.after(
        "CREATE TABLE p (a int) PARTITION BY LIST (a); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);"
        f"ALTER PUBLICATION {names.publication} ADD TABLE p"
    )
    with stream.database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE p1 IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        stream.database.execute("SET statement_timeout = '20s'; ALTER TABLE p REPLICA IDENTITY FULL")
        assert time.monotonic() - began < 5
        holder.rollback()
    assert stream.read()[-1] == "table p(*1:a:integer) identity f [p1 FOR VALUES IN (1)]"
    described = [table for table in tables_of(stream.events) if table.name == "p"]
    assert [part.constraint for part in described[-2].partitions] == ["((a IS NOT NULL) AND (a = 1))"]
    assert [part.constraint for part in described[-1].partitions] == [None]


EXTENSION = {
    "shop.control": "default_version = '1'\nrelocatable = true\n",
    "shop--1.sql": "CREATE TABLE prices (a int PRIMARY KEY); CREATE TYPE unit AS ENUM ('kg');",
    "shop--1--2.sql": "ALTER TABLE prices ADD b unit; CREATE TABLE more (a int);",
    "shop--2--3.sql": "ALTER TYPE unit ADD VALUE 'm'; DROP TABLE more;",
}


@pytest.fixture
def extension(postgres: PostgresServer) -> Iterator[Database]:
    """A database where the extension can be created."""
    directory = PrivateDirectory("extension", unprivileged_user())
    (directory.path / "extension").mkdir()
    for name, text in EXTENSION.items():
        (directory.path / "extension" / name).write_text(text)
    for path in (directory.path, directory.path / "extension"):
        path.chmod(0o755)
    database = postgres.create_database(f"source_{uuid.uuid4().hex[:12]}")
    database.execute(f"ALTER DATABASE {database.dbname} SET extension_control_path = '{directory.path}'")
    yield database
    database.drop()
    directory.remove()


def test_an_extension_that_alters_a_published_table_is_told_of(extension: Database, names: GroupNames) -> None:
    extension.execute(f"CREATE EXTENSION shop; CREATE PUBLICATION {names.publication} FOR TABLE prices")
    install(extension, names, "public.*")
    stream = Stream.begin(extension, names)
    assert stream.after("ALTER EXTENSION shop UPDATE TO '2'", "ALTER EXTENSION shop UPDATE TO '3'", "DROP EXTENSION shop") == [
        "table prices(*1:a:integer!, 2:b:public.unit)",
        "type unit e[0:kg,1:m]",
        "table prices(*1:a:integer!, 2:b:public.unit)",
        "gone prices",
    ]


def test_the_tag_says_which_command_it_was(stream: Stream, names: GroupNames) -> None:
    stream.after("ALTER TABLE t ADD c int", f"ALTER PUBLICATION {names.publication} SET (publish = 'insert')", "DROP TABLE t")
    assert [event.tag for event in stream.events] == ["ALTER TABLE", "ALTER PUBLICATION", "DROP TABLE"]


def test_two_groups_of_a_database_are_told_of_their_own(source: Database, stream: Stream, names: GroupNames) -> None:
    other = GroupNames(names.group + "-2")
    source.execute(f"CREATE TABLE u (a int); CREATE PUBLICATION {other.publication} FOR TABLE t, u")
    tokens = {names.definitions_prefix: install(source, names), other.definitions_prefix: install(source, other)}
    assert len(set(tokens.values())) == 2
    stream.after("ALTER TABLE t ADD c int", "ALTER TABLE u ADD c int")
    [event] = stream.events
    assert isinstance(event, TableDefined)
    assert stream.tokens == [tokens[names.definitions_prefix]]


def test_partitions_that_one_transaction_makes_cost_about_as_much_log_as_they_do_untold(
    source: Database, names: GroupNames
) -> None:
    statements = ["CREATE TABLE {} (a int PRIMARY KEY, b text) PARTITION BY LIST (a)"]
    statements += [f"CREATE TABLE {{}}_{n} PARTITION OF {{}} FOR VALUES IN ({n})" for n in range(200)]
    source.execute(statements[0].format("p"))
    source.execute(f"CREATE PUBLICATION {names.publication} FOR TABLE p WITH (publish_via_partition_root = true)")

    def written(name: str, transaction: list[str]) -> int:
        [(before,)] = source.execute("SELECT pg_current_wal_insert_lsn()::text")
        source.execute("; ".join(transaction).replace("{}", name))
        [(size,)] = source.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::bigint", [before])
        return int(size)

    untold = written("untold", statements)
    install(source, names)
    assert written("p", statements[1:]) < 1.5 * untold
