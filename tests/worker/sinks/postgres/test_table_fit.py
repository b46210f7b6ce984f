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
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.postgres.findings import find
from tests.changes_builder import table
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


def test_tables_that_are_to_be_made_by_hand_come_with_their_statements(target: Target) -> None:
    target.settings = replace(target.settings, sync_schema=False)
    [finding] = look(target, ORDERS)
    for statement in finding.statements:
        target.execute(statement)
    assert look(target, ORDERS) == []
