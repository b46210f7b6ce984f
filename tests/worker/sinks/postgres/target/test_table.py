"""What the target's tables have to be, to take the source's rows."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.changes_builder import delete, insert, table, update
from pgsluice.worker.sinks.postgres.target.table import create_table
from pgsluice.worker.sinks.postgres.target.type_names import known_type
from tests.servers import Database
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

ORDERS = table("public.orders", "id bigint", "note text")


@WITH_AND_WITHOUT_STAGES
def test_a_missing_column_is_named_with_the_statement_that_adds_it(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    with pytest.raises(
        TerminalError, match=r"has no column 'note'.*ALTER TABLE \"public\".\"orders\" ADD COLUMN \"note\" text; then start again"
    ):
        target.apply(insert(ORDERS, b"1", b"a"))
    assert target.table("public", "orders") == []
    target.execute("ALTER TABLE orders ADD COLUMN note text")
    target.sequence = 0
    target.apply(insert(ORDERS, b"1", b"a"))
    assert target.table("public", "orders") == [("1", "a")]


@WITH_AND_WITHOUT_STAGES
def test_a_column_added_at_the_source_and_the_target_is_filled(target: Target) -> None:
    wider = table("public.orders", "id bigint", "note text", "extra integer")
    target.apply(insert(ORDERS, b"1", b"a"))
    target.execute("ALTER TABLE orders ADD COLUMN extra integer DEFAULT 5")
    target.apply(
        insert(ORDERS, b"2", b"b"), update(ORDERS, b"1", b"aa"), insert(wider, b"3", b"c", b"7"), update(wider, b"2", b"b", b"6")
    )
    assert target.table("public", "orders") == [("1", "aa", "5"), ("2", "b", "6"), ("3", "c", "7")]


def test_a_column_that_only_the_target_has_needs_a_default(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text, ours text NOT NULL)")
    with pytest.raises(TerminalError, match=r"column 'ours'.*DROP NOT NULL"):
        target.apply(insert(ORDERS, b"1", b"a"))


@pytest.mark.parametrize(
    "index", ["", "CREATE UNIQUE INDEX ON orders (id) WHERE note > ''", "CREATE UNIQUE INDEX ON orders (id, note)"]
)
def test_a_table_without_a_unique_index_on_the_key_is_refused(target: Target, index: str) -> None:
    target.execute("CREATE TABLE orders (id bigint, note text);" + index)
    with pytest.raises(TerminalError, match=r'CREATE UNIQUE INDEX ON "public"."orders" \("id"\)'):
        target.apply(insert(ORDERS, b"1", b"a"))


@WITH_AND_WITHOUT_STAGES
def test_a_table_that_is_partitioned_by_another_column_than_the_key_needs_another_replica_identity(target: Target) -> None:
    target.execute(
        "CREATE TABLE orders (id bigint, note text NOT NULL, UNIQUE (id, note)) PARTITION BY LIST (note);"
        "CREATE TABLE orders_a PARTITION OF orders FOR VALUES IN ('a'); CREATE TABLE orders_b PARTITION OF orders DEFAULT"
    )
    with pytest.raises(TerminalError, match=r"partitioned by note, .*key \(id\) alone: .*REPLICA IDENTITY USING INDEX"):
        target.apply(insert(ORDERS, b"1", b"a"))
    both = table("public.orders", "id bigint", "note text", identity=ReplicaIdentity.INDEX, identity_columns=("id", "note"))
    target.sequence = 0
    target.apply(insert(both, b"1", b"a"), insert(both, b"2", b"a"))
    target.apply(update(both, b"1", b"z", old=(b"1", b"a")), delete(both, b"2", b"a"))
    assert target.rows("SELECT tableoid::regclass::text, id, note FROM orders") == [("orders_b", 1, "z")]


def test_a_unique_index_that_includes_other_columns_will_do(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint, note text); CREATE UNIQUE INDEX ON orders (id) INCLUDE (note)")
    target.apply(insert(ORDERS, b"1", b"a"), update(ORDERS, b"1", b"b"))
    assert target.table("public", "orders") == [("1", "b")]


def test_a_view_is_not_written_to(target: Target) -> None:
    target.execute("CREATE VIEW orders AS SELECT 1::bigint AS id, ''::text AS note")
    with pytest.raises(TerminalError, match="is not a table"):
        target.apply(insert(ORDERS, b"1", b"a"))


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ("integer", "integer"),
        ("int4", "integer"),
        ("character varying(7)[]", "character varying(7)[]"),
        ("timestamp(3) without time zone", "timestamp(3) without time zone"),
        ("timestamptz(3)", "timestamp(3) with time zone"),
        ("interval day to second(3)", "interval day to second(3)"),
        ("interval year to month", "interval year to month"),
        ("numeric(10,-2)", "numeric(10,-2)"),
        ("bit varying(5)", "bit varying(5)"),
        ('"char"', '"char"'),
        *((told, "bpchar") for told in ("bpchar", "character")),
        *((told, '"bit"') for told in ("bit", '"bit"')),
        ("bpchar[]", "bpchar[]"),
        ("character(5)", "character(5)"),
        ("bpchar(5)", "character(5)"),
        ("bit(3)[]", "bit(3)[]"),
        ('public."Odd -- name"[]', 'public."Odd -- name"[]'),
        *(
            (told, "text")
            for told in ("int4 -- x", "int4 /* x */", "int4\n", " int4", "int4 NOT NULL", "int4); DROP TABLE t; --")
        ),
        *((told, "text") for told in ("int4 /* x */[]", "numeric(1 /* x */)", "numeric((select 1))", "interval day /* x */", "")),
        *((told, "text") for told in ("nowhere", "public.nowhere(3)", "a.b.c.d", "int4, b int4", "int4 array", "setof int4")),
    ],
)
def test_a_type_is_written_as_the_target_calls_it_and_nothing_else(target_database: Database, told: str, known: str) -> None:
    with target_database.connect() as connection:
        connection.execute('CREATE TYPE "Odd -- name" AS ENUM (); SET search_path = pg_catalog')
        assert known_type(connection, "t", "c", told) == known
        create_table(connection, table("public.made", ("c", told)))
        there = (
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'public.made'::regclass AND attnum = 1"
        )
        assert connection.execute(there).fetchone() == (known,)
