"""What is found of a target's tables and types, beside the faults that ``tests/console/check/planted.py`` plants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.console.check.report import CheckReport
from pgsluice.console.check.script import scripts
from pgsluice.replicator.source.user_types import read_user_types
from pgsluice.shared.preflight.database import UserType
from pgsluice.shared.preflight.finding import Finding, Severity, Subject
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import delete, insert, table
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.postgres.findings import find
from tests.replicator.definitions.captured import at_source
from tests.servers import Database
from tests.worker.sinks.postgres.conftest import Target
from tests.worker.sinks.settings import worker_settings

ORDERS = table("public.orders", "id bigint", ("note", "character varying(10)"))


def look(target: Target, *tables: Table, types: tuple[UserType, ...] = (), is_from_catalog: bool = True) -> list[Finding]:
    incoming = Incoming(tables, types, is_from_catalog=is_from_catalog)
    return find(worker_settings("w"), target.settings, incoming)


@pytest.mark.parametrize(
    ("column", "severity"),
    [
        ("text", None),
        ("character varying", None),
        ("character varying(20)", None),
        ("character varying(5)", Severity.WARNING),
        ("integer", Severity.ERROR),
        ("timestamptz", Severity.ERROR),
    ],
)
def test_types_are_compared_by_what_they_hold(target: Target, column: str, severity: Severity | None) -> None:
    target.execute(f"CREATE TABLE orders (id bigint PRIMARY KEY, note {column})")
    found = [each.severity for each in look(target, ORDERS) if each.check == "target-column-type"]
    assert found == ([] if severity is None else [severity])


def test_a_missing_extension_is_made_in_its_schema(target: Target) -> None:
    vector = UserType("public.nothing_like_it", "public", "nothing", ("CREATE EXTENSION IF NOT EXISTS nothing SCHEMA public",))
    [finding] = look(target, ORDERS, types=(vector,))
    assert (finding.check, finding.severity, finding.statements) == ("target-type-missing", Severity.WARNING, vector.creations)


def types_at(source: Database, *names: str) -> tuple[UserType, ...]:
    """The types of a table whose columns are of ``names``, as a check tells them of the source."""
    oids = [source.execute("SELECT %s::regtype::oid::bigint", [name])[0][0] for name in names]
    made = table("public.t", *((f"c{number}", name) for number, name in enumerate(names)))
    columns = tuple(replace(column, type_oid=oid) for column, oid in zip(made.columns, oids, strict=True))
    return tuple(at_source(source.settings, lambda source: read_user_types(source, [replace(made, columns=columns)])))


MADE_OF_EACH_OTHER = """
CREATE SCHEMA "Shop";
CREATE TYPE "Shop"."zz mood" AS ENUM ('sad', 'it''s fine');
CREATE DOMAIN z_int AS int; CREATE DOMAIN y_int AS z_int NOT NULL; CREATE DOMAIN a_int AS y_int;
CREATE DOMAIN short AS bpchar; CREATE DOMAIN moods AS "Shop"."zz mood"[];
CREATE TYPE zz_pair AS ("a b" z_int, m moods, t timestamp(3)[]);
CREATE TYPE a_nested AS (p zz_pair, many zz_pair[]);
CREATE TYPE a_range AS RANGE (subtype = z_int, multirange_type_name = "Shop"."many ranges");
CREATE TYPE floats AS RANGE (subtype = float8, subtype_diff = float8mi);
CREATE TYPE words AS RANGE (subtype = text, subtype_opclass = text_pattern_ops, collation = "C");
"""


def test_types_are_made_behind_those_that_they_are_made_of(source_database: Database, target: Target) -> None:
    source_database.execute(MADE_OF_EACH_OTHER)
    names = ("a_int", "a_nested[]", "a_range", '"Shop"."many ranges"', "floats", "words", "short", "moods[]", "nummultirange")
    types = types_at(source_database, *names)
    statements = [statement for each in look(target, ORDERS, types=types) for statement in each.statements]
    for statement in statements:
        target.execute(statement)
    assert look(target, ORDERS, types=types) == []
    shapes = "SELECT n.nspname, t.typname, t.typtype, t.typnotnull, format_type(t.typbasetype, t.typtypmod) FROM pg_type t"
    places = "JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname IN ('public', 'Shop')"
    query = f"{shapes} {places} ORDER BY 1, 2"
    assert target.rows(query) == source_database.execute(query)


def test_a_check_that_was_not_validated_is_not_made_elsewhere(source_database: Database) -> None:
    source_database.execute(
        "CREATE DOMAIN d AS int; CREATE TABLE t (v d); INSERT INTO t VALUES (-1);"
        "ALTER DOMAIN d ADD CONSTRAINT odd CHECK (VALUE > 0) NOT VALID; ALTER DOMAIN d ADD CONSTRAINT small CHECK (VALUE < 9)"
    )
    [made] = types_at(source_database, "d")
    assert [check.split("ADD ")[1] for check in made.checks] == ["CONSTRAINT small CHECK ((VALUE < 9))"]


def test_an_extension_may_be_in_another_schema_at_the_target(source_database: Database, target: Target) -> None:
    source_database.execute("CREATE EXTENSION citext; CREATE EXTENSION hstore")
    target.execute(
        "CREATE SCHEMA extensions; CREATE EXTENSION citext SCHEMA extensions; CREATE EXTENSION hstore SCHEMA extensions"
    )
    words = table("public.words", ("id", "public.citext"), ("more", "public.hstore[]"))
    types = types_at(source_database, "citext", "hstore[]")
    assert look(target, words, types=types) == []
    target.apply(insert(words, b"Anna", b"{}"), delete(words, b"ANNA", None), insert(words, b"bob", None))
    columns = "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'words'::regclass AND attnum > 0"
    assert target.rows(columns) == [("extensions.citext",), ("extensions.hstore[]",)]
    target.execute("TRUNCATE words")
    assert look(target, words, types=types) == []


def test_a_column_that_became_text_is_named_once_its_type_is_there(target: Target) -> None:
    target.execute("CREATE TABLE words (id bigint PRIMARY KEY, word text)")
    words = table("public.words", "id bigint", ("word", "public.citext"))
    assert look(target, words) == []
    target.execute("CREATE SCHEMA extensions; CREATE EXTENSION citext SCHEMA extensions")
    [finding] = look(target, words)
    assert (finding.check, finding.severity, finding.statements) == ("target-column-text", Severity.INFO, ())
    target.execute(finding.choices[0])
    assert look(target, words) == []
    target.execute("INSERT INTO words VALUES (1, 'Anna')")
    assert target.rows("SELECT id FROM words WHERE word OPERATOR(extensions.=) 'ANNA'") == [(1,)]


def test_a_type_of_the_sources_users_is_not_taken_for_one_in_another_schema(target: Target) -> None:
    target.execute("CREATE SCHEMA other; CREATE TYPE other.mood AS ENUM ('sad')")
    mood = UserType("public.mood", "public", "", ("CREATE TYPE public.mood AS ENUM ('sad')",))
    assert [each.check for each in look(target, ORDERS, types=(mood,))] == ["target-type-missing"]


def test_checks_of_the_sources_users_are_a_persons_choice(source_database: Database, target: Target) -> None:
    source_database.execute(
        "CREATE FUNCTION fine(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true'; CREATE DOMAIN amount AS int NOT NULL"
        " CONSTRAINT small CHECK (VALUE < 10) CONSTRAINT odd CHECK (fine(VALUE)); CREATE TABLE t (id amount PRIMARY KEY)"
    )
    [(oid,)] = source_database.execute("SELECT 'amount'::regtype::oid::bigint")
    made = table("public.t", ("id", "public.amount"))
    [amount] = at_source(
        source_database.settings,
        lambda source: read_user_types(source, [replace(made, columns=(replace(made.columns[0], type_oid=oid),))]),
    )
    [finding] = look(target, ORDERS, types=(amount,))
    assert finding.statements == ("CREATE DOMAIN public.amount AS integer NOT NULL",)
    assert finding.choices == (
        "ALTER DOMAIN public.amount ADD CONSTRAINT odd CHECK (public.fine(VALUE))",
        "ALTER DOMAIN public.amount ADD CONSTRAINT small CHECK ((VALUE < 10))",
    )
    report = CheckReport("group", (Subject.TARGET,), {}, (finding,))
    assert [line for line in scripts(report) if not line.startswith("--")] == ["CREATE DOMAIN public.amount AS integer NOT NULL;"]
    for statement in (*finding.statements, finding.choices[1]):
        target.execute(statement)
    assert look(target, ORDERS, types=(amount,)) == []


def test_what_nats_calls_a_type_gets_into_no_statement_unless_it_is_one(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    for text in ("text); DROP TABLE orders; --", "text -- x", "text /* x"):
        evil = table("public.orders", "id bigint", ("note", text))
        [missing] = look(target, evil, is_from_catalog=False)
        assert "has no column 'note'" in missing.fact
        assert missing.statements == ()
        target.execute("ALTER TABLE orders ADD note int")
        assert [each.statements for each in look(target, evil, is_from_catalog=False)] == [()]
        target.execute("ALTER TABLE orders DROP note")
    [missing] = look(target, ORDERS, is_from_catalog=False)
    assert missing.statements == ('ALTER TABLE "public"."orders" ADD COLUMN "note" character varying(10)',)


def test_a_schema_of_a_stranger_is_a_persons_choice(target: Target) -> None:
    target.execute("DROP SCHEMA pgsluice CASCADE; CREATE ROLE stranger; CREATE SCHEMA pgsluice AUTHORIZATION stranger")
    try:
        [finding] = look(target, ORDERS)
    finally:
        target.execute("DROP SCHEMA pgsluice; DROP ROLE stranger")
    assert (finding.check, finding.severity, finding.statements) == ("target-schema-owner", Severity.ERROR, ())
    assert finding.choices[0].startswith("ALTER SCHEMA pgsluice OWNER TO")


def test_rows_that_are_there_before_the_first_one_comes_are_told_of(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note varchar(10)); CREATE TABLE other (id bigint PRIMARY KEY)")
    other = table("public.other", "id bigint")
    assert look(target, ORDERS, other) == []
    assert target.sink.foresee([ORDERS, other]) == []
    target.execute("INSERT INTO orders VALUES (7, 'theirs')")
    [finding] = look(target, ORDERS, other)
    assert (finding.check, finding.severity, finding.statements) == ("target-table-not-empty", Severity.WARNING, ())
    [sentence] = target.sink.foresee([ORDERS, other])
    assert sentence.endswith("comes: public.orders")
    target.apply(insert(ORDERS, b"1", b"ours"))
    incoming = Incoming([ORDERS], is_from_catalog=True)
    assert find(worker_settings("orders", name="postgres"), target.settings, incoming) == []


def test_tables_that_are_to_be_made_by_hand_come_with_their_statements(target: Target) -> None:
    target.settings = replace(target.settings, sync_schema=False)
    [finding] = look(target, ORDERS)
    for statement in finding.statements:
        target.execute(statement)
    assert look(target, ORDERS) == []
