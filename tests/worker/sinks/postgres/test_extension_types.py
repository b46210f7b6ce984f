"""Keys of types whose operators are not in pg_catalog."""

from __future__ import annotations

import pytest

from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.changes_builder import delete, insert, table, update
from tests.worker.sinks.postgres.conftest import Target, Way


@pytest.mark.parametrize(
    ("extension", "type_name", "keys"),
    [
        ("citext", "citext", (b"Anna", b"Bob", b"\xc3\x84nne")),
        ("ltree", "ltree", (b"top", b"top.a", b"top.b")),
        ("hstore", "hstore", (b'"a"=>"1"', b'"b"=>NULL', b"")),
        ("cube", "cube", (b"(1)", b"(2)", b"(3, 4)")),
        ("vector", "vector(2)", (b"[1,2]", b"[2,3]", b"[0,0]")),
    ],
)
@pytest.mark.parametrize(("schema", "way"), [("public", Way.STAGED), ("extensions", Way.IN_THE_RECEIPT)])
def test_a_key_of_an_extensions_type_finds_its_row(
    target: Target, extension: str, type_name: str, keys: tuple[bytes, bytes, bytes], schema: str
) -> None:
    if not target.rows(f"SELECT FROM pg_available_extensions WHERE name = '{extension}'"):
        pytest.skip(f"this server has no {extension}")
    target.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}; CREATE EXTENSION {extension} SCHEMA {schema}")
    things = table("public.things", ("id", f"{schema}.{type_name}"), "note text", "more text")
    first, second, third = keys
    target.apply(insert(things, first, b"a", b"x"), insert(things, second, b"b", b"y"))
    target.apply(update(things, first, b"c", UNCHANGED), delete(things, second, None, None), insert(things, third, b"d", None))
    target.apply(insert(things, first, b"again", b"z"), update(things, second, b"e", b"f", old=(third, None, None)))
    assert sorted(target.rows("SELECT id::text, note, more FROM things")) == sorted(
        [(first.decode(), "again", "z"), (second.decode(), "e", "f")]
    )


def test_a_case_insensitive_key_that_changes_its_case_is_the_same_row(target: Target) -> None:
    target.execute("CREATE EXTENSION citext; CREATE DOMAIN public.login AS public.citext")
    people = table("public.people", "id public.login", "note text", "more text")
    target.apply(insert(people, b"Anna", b"a", b"x"), insert(people, b"BOB", b"b", b"y"))
    target.apply(update(people, b"ANNA", b"b", UNCHANGED, old=(b"Anna", None, None)), delete(people, b"BOB", None, None))
    assert target.rows("SELECT id::text, note, more FROM people") == [("ANNA", "b", "x")]


def test_a_table_without_a_key_finds_rows_by_values_of_any_type(target: Target) -> None:
    target.execute("CREATE EXTENSION hstore; CREATE EXTENSION ltree")
    things = table("public.things", "a public.hstore", "b public.ltree", key=(), identity=ReplicaIdentity.FULL)
    target.apply(insert(things, b'"a"=>"1"', b"top"), insert(things, None, b"top.a"))
    target.apply(update(things, b"", b"top", old=(b'"a"=>"1"', b"top")), delete(things, None, b"top.a"))
    assert target.rows("SELECT a::text, b::text FROM things") == [("", "top")]
