"""What the target's tables have to be, and what is made when they are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import ReplicaIdentity
from tests.changes_builder import delete, insert, table, truncate, update
from tests.worker.sinks.postgres.conftest import Target

ORDERS = table("public.orders", "id bigint", "note text")


def columns(target: Target, name: str) -> list[tuple[Any, ...]]:
    return target.rows(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        f" WHERE attrelid = '{name}'::regclass AND attnum > 0 ORDER BY attnum"
    )


def indexes(target: Target, name: str) -> list[tuple[Any, ...]]:
    return target.rows(f"SELECT pg_get_indexdef(indexrelid), indisprimary FROM pg_index WHERE indrelid = '{name}'::regclass")


def test_a_missing_table_is_made_with_its_schema_types_and_key(target: Target) -> None:
    made = table(
        'Sales.Order "lines"', ("note", "character varying(7)"), "b bigint", "tags text[]", "A numeric(10,2)", key=("A", "b")
    )
    target.apply(insert(made, b"x", b"1", b"{a,b}", b"1.50"))
    assert columns(target, '"Sales"."Order ""lines"""') == [
        ("note", "character varying(7)", False),
        ("b", "bigint", True),
        ("tags", "text[]", False),
        ("A", "numeric(10,2)", True),
    ]
    assert [definition.endswith('btree ("A", b)') for definition, _ in indexes(target, '"Sales"."Order ""lines"""')] == [True]


def test_types_that_the_target_does_not_know_become_text(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    made = table("public.moods", "id bigint", "mood public.mood", "evil text);DROP/**/TABLE/**/moods;--")
    target.apply(insert(made, b"1", b"happy", b"x"))
    assert columns(target, "moods")[1:] == [("mood", "text", False), ("evil", "text", False)]
    assert "becomes text" in caplog.text


def test_a_type_that_the_target_has_is_used(target: Target) -> None:
    target.execute("CREATE TYPE public.mood AS ENUM ('happy', 'sad')")
    target.apply(insert(table("public.moods", "id bigint", "mood public.mood"), b"1", b"sad"))
    assert columns(target, "moods")[1] == ("mood", "mood", False)


def test_a_replica_identity_index_beside_the_primary_key_is_made_too(target: Target) -> None:
    people = table("public.people", "id bigint", "email text", identity=ReplicaIdentity.INDEX, identity_columns=("email",))
    target.apply(insert(people, b"1", b"a@x"))
    assert sorted(primary for _, primary in indexes(target, "people")) == [False, True]


def test_a_table_that_is_only_truncated_is_made(target: Target) -> None:
    target.apply(truncate(ORDERS))
    assert target.table("public", "orders") == []


def test_a_missing_table_is_an_error_when_schemas_are_not_synchronised(target: Target) -> None:
    target.settings = replace(target.settings, sync_schema=False)
    with pytest.raises(TerminalError, match=r"'public\.orders' does not exist at the target.*sync-schema"):
        target.apply(insert(ORDERS, b"1", b"a"))


def test_a_missing_column_is_named_with_the_statement_that_adds_it(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    with pytest.raises(TerminalError, match=r"has no column 'note'.*ALTER TABLE \"public\".\"orders\" ADD COLUMN \"note\" text"):
        target.apply(insert(ORDERS, b"1", b"a"))
    assert target.table("public", "orders") == []
    target.execute("ALTER TABLE orders ADD COLUMN note text")
    target.sequence = 0
    target.apply(insert(ORDERS, b"1", b"a"))
    assert target.table("public", "orders") == [("1", "a")]


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


def test_a_table_that_was_altered_under_the_worker_is_looked_at_again(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    target.execute("ALTER TABLE orders ALTER COLUMN id TYPE integer")
    target.apply(update(ORDERS, b"1", b"b"), insert(ORDERS, b"2", b"c"))
    target.execute("DROP TABLE orders")
    target.apply(insert(ORDERS, b"3", b"c"))
    assert target.table("public", "orders") == [("3", "c")]
    target.execute("ALTER TABLE orders DROP COLUMN note")
    with pytest.raises(TerminalError, match="has no column 'note'"):
        target.apply(insert(ORDERS, b"4", b"d"))


def test_a_temporal_key_does_not_do_and_one_beside_it_does(target: Target) -> None:
    bookings = table("public.bookings", "room int4range", "during daterange", "guest text", key=("room", "during"))
    target.execute(
        "CREATE TABLE bookings (room int4range, during daterange, guest text, PRIMARY KEY (room, during WITHOUT OVERLAPS))"
    )
    with pytest.raises(TerminalError) as refusal:
        target.apply(insert(bookings, b"[1,2)", b"[2026-01-01,2026-02-01)", b"Ada"))
    statement = 'CREATE UNIQUE INDEX ON "public"."bookings" ("room", "during")'
    assert statement in refusal.value.remedy
    target.execute(statement)
    target.sequence = 0
    target.apply(insert(bookings, b"[1,2)", b"[2026-01-01,2026-02-01)", b"Ada"))
    target.apply(update(bookings, b"[1,2)", b"[2026-01-01,2026-02-01)", b"Grace"))
    assert target.table("public", "bookings")[0][2] == "Grace"
