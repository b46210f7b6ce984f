"""What the worker is told when the target refuses something: names, never values."""

from __future__ import annotations

import re
from dataclasses import replace

import psycopg
import pytest

from pgsluice.shared.errors import MissingPrivilegeError, TerminalError, TransientError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import copied, insert, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.postgres.target.failure import function_in, target_error
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

ORDERS = table("public.orders", "id bigint", "note text")
SECRET = b"s3cret-value"


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("id bigint PRIMARY KEY, note varchar(3)", "string data right truncation, SQLSTATE 22001, column 'note'"),
        ("id bigint PRIMARY KEY, note integer", "invalid text representation, SQLSTATE 22P02, column 'note'"),
        ("id smallint PRIMARY KEY, note text", "SQLSTATE 22..., column 'id'"),
        (
            "id bigint PRIMARY KEY, note text CHECK (note = 'x')",
            "check violation, SQLSTATE 23514, constraint 'orders_note_check'",
        ),
    ],
)
def test_rows_that_the_target_cannot_hold_are_rejected_and_move_nothing(target: Target, columns: str, named: str) -> None:
    target.execute(f"CREATE TABLE orders ({columns})")
    messages = target.messages([insert(ORDERS, b"123456789", SECRET)])
    with pytest.raises(RejectedChanges) as caught:
        target.commit([messages])
    (rejection,) = caught.value.rejections
    assert rejection.position == Position(LSN(1000), 1)
    assert re.search(named, rejection.reason)
    assert SECRET.decode() not in rejection.reason
    assert "123456789" not in rejection.reason
    assert target.rows("SELECT sequence FROM pgsluice.applied") == [(0,)]
    target.execute("DROP TABLE orders; CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    assert target.commit([messages]).sequence == 1


@WITH_AND_WITHOUT_STAGES
def test_a_label_that_the_enum_of_the_target_lacks_is_rejected_until_it_is_added(target: Target) -> None:
    target.execute("CREATE TYPE mood AS ENUM ('calm'); CREATE TABLE people (id bigint PRIMARY KEY, mood mood)")
    people = table("public.people", "id bigint", "mood public.mood")
    target.apply(insert(people, b"1", b"calm"))
    messages = target.messages([insert(people, b"2", b"angry")])
    with pytest.raises(RejectedChanges) as caught:
        target.commit([messages])
    assert "SQLSTATE 22P02, column 'mood'" in caught.value.rejections[0].reason
    target.execute("ALTER TYPE mood ADD VALUE 'angry'")
    target.commit([messages])
    assert target.rows("SELECT id, mood::text FROM people ORDER BY id") == [(1, "calm"), (2, "angry")]


def test_a_null_where_the_target_has_none_names_the_column(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text NOT NULL)")
    with pytest.raises(RejectedChanges) as caught:
        target.apply(insert(ORDERS, b"1", None))
    assert "not null violation, SQLSTATE 23502, column 'note'" in caught.value.rejections[0].reason


def test_an_error_in_a_later_piece_undoes_the_earlier_ones(target: Target) -> None:
    narrow = table("public.narrow", "id bigint", "note text")
    target.execute("CREATE TABLE narrow (id bigint PRIMARY KEY, note text CHECK (length(note) < 3))")
    with pytest.raises(RejectedChanges):
        target.apply_partitions([[insert(ORDERS, b"1", b"a")]], [[insert(narrow, b"1", b"long")]])
    assert target.table("public", "orders") == []


def test_a_position_that_cannot_be_moved_undoes_the_batch(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    target.execute("ALTER TABLE pgsluice.applied RENAME COLUMN changes TO changed")
    with pytest.raises(TerminalError, match="SQLSTATE 42703"):
        target.apply(update(ORDERS, b"1", b"b"))
    assert target.table("public", "orders") == [("1", "a")]


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("40P01", TransientError),
        ("40001", TransientError),
        ("53300", TransientError),
        ("53100", TransientError),
        ("55P03", TransientError),
        ("57P01", TransientError),
        ("57P03", TransientError),
        ("08006", TransientError),
        ("25006", TransientError),
        ("22001", TerminalError),
        ("23505", TerminalError),
        ("42P01", TerminalError),
        ("42501", MissingPrivilegeError),
    ],
)
def test_each_sqlstate_has_one_policy(state: str, kind: type[Exception]) -> None:
    error = psycopg.errors.lookup(state)("message with s3cret-value")
    raised = target_error(error, ORDERS, "applying messages 1 to 2")
    assert type(raised) is kind
    assert state in str(raised)
    assert "s3cret" not in str(raised)


def test_a_broken_connection_is_transient() -> None:
    assert type(target_error(psycopg.OperationalError("consuming input failed"), None, "applying")) is TransientError


AUDITED = """
    CREATE TABLE audit (note text);
    CREATE TABLE orders (id bigint PRIMARY KEY, note text);
    CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN new; END $$;
    CREATE TRIGGER audit AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION audited()
"""


@pytest.mark.parametrize(
    "body", ["INSERT INTO audit VALUES (new.note)", "EXECUTE 'INSERT INTO audit VALUES (' || quote_literal(new.note) || ')'"]
)
def test_a_trigger_that_needs_a_search_path_is_named_with_its_cure(target: Target, body: str) -> None:
    target.execute(AUDITED.format(body=body))
    messages = target.messages([insert(ORDERS, b"1", SECRET + b"\nPL/pgSQL function fake() line 1")])
    with pytest.raises(TerminalError, match=r"SQLSTATE 42P01, function public\.audited: .*search_path is pg_catalog") as raised:
        target.commit([messages])
    assert SECRET.decode() not in str(raised.value)
    assert "fake" not in str(raised.value)
    target.execute("ALTER FUNCTION audited SET search_path = public")
    target.commit([messages])
    assert len(target.rows("SELECT FROM audit")) == 1


def test_a_default_that_needs_a_search_path_is_named_when_rows_are_copied(target: Target) -> None:
    target.execute(
        "CREATE TABLE numbers (n bigint); CREATE FUNCTION next_number() RETURNS bigint LANGUAGE plpgsql"
        " AS $$ BEGIN RETURN (SELECT max(n) FROM numbers); END $$;"
        " CREATE TABLE orders (id bigint PRIMARY KEY, note text, n bigint DEFAULT next_number())"
    )
    with pytest.raises(TerminalError, match=r"function public\.next_number: .*search_path is pg_catalog"):
        apply_copied(target.sink, [[copied(1, ORDERS, (b"1", SECRET))]])


def test_a_trigger_that_lacks_a_right_is_named(target: Target) -> None:
    role = f"pgsluice_{target.database.dbname}"
    target.execute(AUDITED.format(body="INSERT INTO public.audit VALUES (new.note)"))
    target.execute(f"CREATE ROLE {role} LOGIN; GRANT ALL ON orders TO {role}; DROP SCHEMA IF EXISTS pgsluice CASCADE")
    target.execute(f"CREATE SCHEMA pgsluice AUTHORIZATION {role}")
    target.settings = replace(target.settings, target=replace(target.settings.target, user=role))
    try:
        with pytest.raises(TerminalError, match=r"SQLSTATE 42501.*, function public\.audited\): .*SECURITY DEFINER"):
            target.apply(insert(ORDERS, b"1", SECRET))
    finally:
        target.sink.close()
        target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_what_a_trigger_raises_is_a_dead_letter_that_names_it(target: Target) -> None:
    target.execute(AUDITED.format(body="RAISE EXCEPTION 'no %', new.note"))
    with pytest.raises(RejectedChanges) as caught:
        target.apply(insert(ORDERS, b"1", SECRET))
    reason = caught.value.rejections[0].reason
    assert "SQLSTATE P0001, function public.audited" in reason
    assert SECRET.decode() not in reason


@pytest.mark.parametrize(
    "line",
    [
        "PL/pgSQL function public.audited() line 3 at SQL statement",
        "PL/pgSQL-Funktion public.audited() Zeile 3 bei SQL-Anweisung",
        "fonction PL/pgSQL public.audited(), ligne 3 à instruction SQL",
    ],
)
def test_a_function_is_found_in_whatever_language_the_server_speaks(line: str) -> None:
    assert function_in(f'SQL statement "INSERT INTO audit VALUES (1)"\n{line}') == "public.audited"
    assert function_in('SQL statement "INSERT INTO audit VALUES (1)"') == ""
