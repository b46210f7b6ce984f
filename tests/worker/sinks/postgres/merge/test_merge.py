"""What the target holds after batches of changes, both for small and for staged pieces where that makes a difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.testing.changes_builder import delete, insert, message, table, truncate, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from tests.waiting import wait_until
from tests.worker.sinks.postgres.conftest import EVERY_WAY, WITH_AND_WITHOUT_STAGES, Target

ORDERS = table("public.orders", "id bigint", "note text", "document text")
LINES = table("public.lines", "order_id bigint", "note text", "line integer", key=("order_id", "line"))
EVENTS = table("public.events", "at text", "data jsonb", key=(), identity=ReplicaIdentity.FULL)


def orders(target: Target) -> list[tuple[str | None, ...]]:
    return target.table("public", "orders")


@EVERY_WAY
def test_inserts_updates_and_deletes_arrive(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a", None), insert(ORDERS, b"2", b"tab\t", b"\\N"), insert(ORDERS, b"3", b"", b"c"))
    target.apply(update(ORDERS, b"1", b"z", b"set"), delete(ORDERS, b"3", None, None), insert(ORDERS, b"4", b"d", b"d"))
    assert orders(target) == [("1", "z", "set"), ("2", "tab\t", "\\N"), ("4", "d", "d")]


@WITH_AND_WITHOUT_STAGES
def test_insert_update_and_delete_of_a_key_in_one_batch(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a", b"a"), update(ORDERS, b"1", b"b", b"b"), delete(ORDERS, b"1", None, None))
    assert orders(target) == []
    target.apply(insert(ORDERS, b"1", b"c", b"c"))
    assert orders(target) == [("1", "c", "c")]


@WITH_AND_WITHOUT_STAGES
def test_partitions_of_a_batch_are_merged_in_order(target: Target) -> None:
    target.apply_partitions(
        [[insert(ORDERS, b"1", b"first", b"d")]],
        [[update(ORDERS, b"1", b"second", UNCHANGED)], [insert(ORDERS, b"2", b"x", b"y")]],
        [[delete(ORDERS, b"2", None, None)], [update(ORDERS, b"3", b"third", UNCHANGED, old=(b"1", None, None))]],
    )
    assert orders(target) == [("3", "third", "d")]


@WITH_AND_WITHOUT_STAGES
def test_unchanged_toast_values_keep_what_the_target_has(target: Target) -> None:
    long = b"0123456789" * 5000
    target.apply(insert(ORDERS, b"1", b"a", long), insert(ORDERS, b"2", b"b", long))
    target.apply(update(ORDERS, b"1", b"c", UNCHANGED), update(ORDERS, b"7", b"moved", UNCHANGED, old=(b"2", None, None)))
    assert orders(target) == [("1", "c", long.decode()), ("7", "moved", long.decode())]


@WITH_AND_WITHOUT_STAGES
def test_an_unchanged_value_of_full_identity_is_in_the_old_image(target: Target) -> None:
    full = table("public.orders", "id bigint", "note text", "document text", identity=ReplicaIdentity.FULL)
    target.apply(update(full, b"1", b"new", UNCHANGED, old=(b"1", b"old", b"kept")))
    assert orders(target) == [("1", "new", "kept")]
    target.apply(delete(full, b"1", b"new", b"kept"))
    assert orders(target) == []


@WITH_AND_WITHOUT_STAGES
def test_composite_keys_in_key_order_and_column_order_apart(target: Target) -> None:
    lines = table("public.lines", "line integer", "note text", "order_id bigint", key=("order_id", "line"))
    target.apply(insert(lines, b"1", b"a", b"10"), insert(lines, b"2", b"b", b"10"), insert(lines, b"1", b"c", b"11"))
    target.apply(
        update(lines, b"2", b"B", b"10"),
        delete(lines, b"1", None, b"11"),
        update(lines, b"9", UNCHANGED, b"12", old=(b"1", None, b"10")),
    )
    assert target.table("public", "lines") == [("2", "B", "10"), ("9", "a", "12")]


@WITH_AND_WITHOUT_STAGES
def test_keys_are_swapped(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"one", b"x"), insert(ORDERS, b"2", b"two", b"y"))
    target.apply(
        update(ORDERS, b"9", b"one", UNCHANGED, old=(b"1", None, None)),
        update(ORDERS, b"1", b"two", UNCHANGED, old=(b"2", None, None)),
        update(ORDERS, b"2", b"one", UNCHANGED, old=(b"9", None, None)),
    )
    assert orders(target) == [("1", "two", "y"), ("2", "one", "x")]


@WITH_AND_WITHOUT_STAGES
def test_equal_keys_of_different_text_are_told_apart(target: Target) -> None:
    prices = table("public.prices", "amount numeric", "note text", "document text", key=("amount",))
    target.apply(insert(prices, b"1.0", b"a", b"d"), insert(prices, b"2.0", b"b", b"e"), insert(prices, b"3.0", b"c", b"f"))
    target.apply(
        update(prices, b"1.00", b"A", b"D", old=(b"1.0", None, None)),
        update(prices, b"2.00", b"B", UNCHANGED, old=(b"2.0", None, None)),
        delete(prices, b"3.0", None, None),
        insert(prices, b"3.00", b"C", b"F"),
    )
    assert target.table("public", "prices") == [("1.00", "A", "D"), ("2.00", "B", "e"), ("3.00", "C", "F")]
    target.apply(delete(prices, b"1.00", None, None), insert(prices, b"1", b"again", b"g"))
    assert target.table("public", "prices")[0] == ("1", "again", "g")


@WITH_AND_WITHOUT_STAGES
def test_replica_identity_index_is_the_key(target: Target) -> None:
    people = table(
        "public.people",
        "id bigint",
        "email text",
        "name text",
        identity=ReplicaIdentity.INDEX,
        identity_columns=("email",),
    )
    target.apply(insert(people, b"1", b"a@x", b"A"), insert(people, b"2", b"b@x", b"B"))
    target.apply(update(people, b"3", b"a@x", b"AA"), delete(people, None, b"b@x", None))
    assert target.table("public", "people") == [("3", "a@x", "AA")]


@WITH_AND_WITHOUT_STAGES
def test_a_table_without_a_key_keeps_duplicates_and_loses_one_at_a_time(target: Target) -> None:
    twin = (b"now", b'{"a": 1}')
    target.apply(insert(EVENTS, *twin), insert(EVENTS, *twin), insert(EVENTS, *twin), insert(EVENTS, None, None))
    target.apply(
        delete(EVENTS, *twin),
        update(EVENTS, b"then", UNCHANGED, old=twin),
        delete(EVENTS, None, None),
        insert(EVENTS, None, b"[]"),
    )
    assert target.rows("SELECT at, data::text FROM events ORDER BY at") == [
        ("now", '{"a": 1}'),
        ("then", '{"a": 1}'),
        (None, "[]"),
    ]


@WITH_AND_WITHOUT_STAGES
def test_values_of_types_without_equality_identify_a_row_by_their_text(target: Target) -> None:
    shapes = table("public.shapes", "a json", "c point", "d numeric", "e real", key=(), identity=ReplicaIdentity.FULL)
    row = (b'{"b":1, "a":2}', b"(1,2)", b"1.50", b"-0")
    other = (b'{"b":1, "a":2}', b"(1,2)", b"1.5", b"-0")
    target.apply(insert(shapes, *other), insert(shapes, *row))
    target.apply(delete(shapes, *row))
    assert target.rows("SELECT d::text FROM shapes") == [("1.5",)]


@EVERY_WAY
def test_a_truncation_is_a_barrier_between_changes(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a", b"b"), insert(LINES, b"1", b"x", b"1"))
    target.apply(insert(ORDERS, b"2", b"a", b"b"), truncate(ORDERS, LINES), insert(ORDERS, b"3", b"a", b"b"))
    assert (orders(target), target.table("public", "lines")) == ([("3", "a", "b")], [])
    target.apply_partitions([[insert(ORDERS, b"4", b"a", b"b")]], [[truncate(ORDERS)]], [[insert(ORDERS, b"5", b"a", b"b")]])
    assert orders(target) == [("5", "a", "b")]


def test_a_truncation_restarts_sequences_when_it_says_so(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text, document text, number serial)")
    target.apply(insert(ORDERS, b"1", b"a", b"b"), insert(ORDERS, b"2", b"a", b"b"))
    target.apply(truncate(ORDERS, restart_identity=True), insert(ORDERS, b"3", b"a", b"b"))
    assert orders(target) == [("3", "a", "b", "1")]


@WITH_AND_WITHOUT_STAGES
def test_an_insert_that_meets_its_key_replaces_the_row(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text, document text, ours text DEFAULT 'kept')")
    target.execute("INSERT INTO orders VALUES (1, 'stale', 'stale'), (2, 'other', NULL)")
    target.apply(insert(ORDERS, b"1", b"a", b"b"), insert(ORDERS, b"3", b"c", b"d"))
    assert orders(target) == [("1", "a", "b", "kept"), ("2", "other", None, "kept"), ("3", "c", "d", "kept")]


@WITH_AND_WITHOUT_STAGES
def test_a_table_of_nothing_but_its_key(target: Target) -> None:
    tags = table("public.tags", "a text", "b text", key=("a", "b"))
    target.apply(insert(tags, b"x", b"y"))
    target.apply(insert(tags, b"x", b"y"), insert(tags, b"x", b"z"))
    target.apply(update(tags, b"x", b"w", old=(b"x", b"z")))
    assert target.table("public", "tags") == [("x", "w"), ("x", "y")]


def test_changes_that_meet_no_row_are_counted_and_do_no_harm(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a", b"b"), insert(EVENTS, b"x", b"{}"))
    target.apply(
        delete(ORDERS, b"8", None, None), update(ORDERS, b"9", b"secret", UNCHANGED), update(EVENTS, b"a", b"1", old=(b"b", b"2"))
    )
    assert orders(target) == [("1", "a", "b")]
    assert missed(target) == {"events": 1, "orders": 2}
    kinds = {each.place[1]: (each.updates, each.deletes, len(each.positions)) for each in target.sink.missed()}
    assert kinds == {"events": (1, 0, 1), "orders": (1, 1, 2)}
    target.apply(delete(ORDERS, b"8", None, None))
    since = {each.place[1]: each.since for each in target.sink.missed()}
    target.apply(delete(ORDERS, b"8", None, None), insert(ORDERS, b"8", b"a", b"b"), delete(ORDERS, b"8", None, None))
    successor = target.new_sink()
    successor.open()
    assert missed(target) == {each.place[1]: each.changes for each in successor.missed()} == {"events": 1, "orders": 3}
    assert {each.place[1]: each.since for each in successor.missed()} == since


def missed(target: Target) -> dict[str, int]:
    return {each.place[1]: each.changes for each in target.sink.missed()}


@WITH_AND_WITHOUT_STAGES
def test_quoted_mixed_case_and_reserved_names_arrive(target: Target) -> None:
    odd = table('Sales "EU".select $1 %s', "user bigint", "Größe text", 'a "quoted" name text', "c1 text", key=("user",))
    target.apply(insert(odd, b"1", b"a", b"b", b"c"), insert(odd, b"2", b"a", b"b", b"c"))
    target.apply(
        update(odd, b"1", b"A", UNCHANGED, b"C"),
        delete(odd, b"2", None, None, None),
        update(odd, b"4", b"A", UNCHANGED, b"C", old=(b"3", None, None, None)),
    )
    assert target.table('Sales "EU"', "select $1 %s") == [("1", "A", "b", "C")]
    strange = table('Sales "EU".$pgsluice$', "missing text", "staged text", "it's text", key=(), identity=ReplicaIdentity.FULL)
    target.apply(insert(strange, b"a", b"b", b"c"), delete(strange, b"a", b"b", b"c"), insert(strange, b"d", None, b"f"))
    assert target.table('Sales "EU"', "$pgsluice$") == [("d", None, "f")]


@pytest.fixture
def family(target: Target) -> Target:
    """Parents and children under foreign keys, and a unique column beside the key."""
    target.execute("CREATE TABLE parents (id bigint PRIMARY KEY, email text UNIQUE)")
    target.execute(
        "CREATE TABLE children (id bigint PRIMARY KEY, parent_id bigint NOT NULL REFERENCES parents,"
        " pal_id bigint REFERENCES children)"
    )
    return target


PARENTS = table("public.parents", "id bigint", "email text")
CHILDREN = table("public.children", "id bigint", "parent_id bigint", "pal_id bigint")


def test_tables_of_one_name_in_two_schemas_stay_apart(target: Target) -> None:
    here, there = (table(f"{schema}.customers", "id bigint", "name text") for schema in ("here", "there"))
    target.apply(insert(here, b"1", b"of here"), insert(there, b"1", b"of there"), insert(there, b"2", b"gone"))
    target.apply(update(here, b"1", b"changed"), delete(there, b"2", None))
    target.apply(truncate(here), insert(there, b"3", b"more"))
    assert target.rows("SELECT id, name FROM here.customers") == []
    assert target.rows("SELECT id, name FROM there.customers ORDER BY id") == [(1, "of there"), (3, "more")]


@WITH_AND_WITHOUT_STAGES
def test_foreign_keys_are_respected_whatever_order_the_tables_come_in(family: Target) -> None:
    family.apply_partitions([[insert(CHILDREN, b"1", b"1", None), insert(PARENTS, b"1", b"a")]])
    family.apply(insert(PARENTS, b"2", b"b"), update(CHILDREN, b"1", b"2", b"1"), delete(PARENTS, b"1", None))
    assert (family.table("public", "parents"), family.table("public", "children")) == ([("2", "b")], [("1", "2", "1")])
    family.apply(delete(CHILDREN, b"1", None, None), delete(PARENTS, b"2", None))
    assert family.table("public", "parents") == []


@WITH_AND_WITHOUT_STAGES
def test_a_unique_value_passes_from_a_deleted_row_to_another(family: Target) -> None:
    family.apply(insert(PARENTS, b"1", b"a"))
    family.apply(delete(PARENTS, b"1", None), insert(PARENTS, b"2", b"a"))
    assert family.table("public", "parents") == [("2", "a")]


@WITH_AND_WITHOUT_STAGES
def test_changes_that_only_their_own_order_allows_are_applied_one_by_one(family: Target) -> None:
    family.apply(insert(PARENTS, b"1", b"a"), insert(PARENTS, b"2", b"b"), insert(CHILDREN, b"1", b"1", None))
    exchange = [
        update(PARENTS, b"1", b"free"),
        update(PARENTS, b"2", b"a"),
        update(PARENTS, b"1", b"b"),
        insert(PARENTS, b"3", b"c"),
        update(CHILDREN, b"1", b"3", None),
        delete(PARENTS, b"1", None),
        insert(PARENTS, b"4", b"b"),
    ]
    messages = family.messages(exchange)
    with pytest.raises(TransientError, match="one by one"):
        family.sink.commit(write(family.sink, [messages]), STREAM_CREATED)
    family.sink.commit(write(family.sink, [messages]), STREAM_CREATED)
    assert family.table("public", "parents") == [("2", "a"), ("3", "c"), ("4", "b")]
    assert family.table("public", "children") == [("1", "3", None)]


def test_a_foreign_key_that_the_source_does_not_have_rejects_the_row(family: Target) -> None:
    messages = [message(1, insert(CHILDREN, b"1", b"77", None))]
    with pytest.raises(TransientError):
        family.commit([messages])
    with pytest.raises(RejectedChanges) as caught:
        family.commit([messages])
    (rejection,) = caught.value.rejections
    assert "foreign key violation, SQLSTATE 23503, constraint 'children_parent_id_fkey'" in rejection.reason


def test_disabled_foreign_keys_let_everything_in(family: Target) -> None:
    sink = family.new_sink("other", disable_foreign_keys=True)
    sink.open()
    sink.commit(write(sink, [[message(1, insert(CHILDREN, b"1", b"77", None))]]), STREAM_CREATED)
    assert family.table("public", "children") == [("1", "77", None)]


@WITH_AND_WITHOUT_STAGES
def test_identity_and_generated_columns_of_the_target(target: Target) -> None:
    target.execute(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text,"
        " document text GENERATED ALWAYS AS (upper(note)) STORED, number bigint GENERATED ALWAYS AS IDENTITY)"
    )
    numbered = table("public.orders", "id bigint", "note text", "document text", "number bigint")
    target.apply(insert(numbered, b"10", b"a", b"x", b"100"), insert(numbered, b"20", b"b", b"x", b"200"))
    target.apply(update(numbered, b"10", b"aa", b"x", b"100"), update(numbered, b"20", b"bb", UNCHANGED, b"200"))
    assert target.table("public", "orders") == [("10", "aa", "AA", "100"), ("20", "bb", "BB", "200")]


@WITH_AND_WITHOUT_STAGES
def test_an_update_of_nothing_that_the_target_takes_from_the_source_finds_its_row(target: Target) -> None:
    target.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, note text GENERATED ALWAYS AS ('n') STORED,"
        " document text GENERATED ALWAYS AS ('d') STORED)"
    )
    target.apply(insert(ORDERS, b"1", b"a", b"x"))
    target.apply(update(ORDERS, b"1", b"b", UNCHANGED), update(ORDERS, b"2", b"b", UNCHANGED))
    assert orders(target) == [("1", "n", "d")]
    assert [each.changes for each in target.sink.missed()] == [1]


@WITH_AND_WITHOUT_STAGES
def test_columns_of_domains_take_values_that_were_not_sent(target: Target) -> None:
    target.execute("CREATE DOMAIN filled AS varchar(5) NOT NULL; CREATE DOMAIN small AS filled CHECK (value < 'x')")
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note small, document filled)")
    target.apply(insert(ORDERS, b"1", b"a", b"b"))
    target.apply(update(ORDERS, b"1", b"c", UNCHANGED))
    assert orders(target) == [("1", "c", "b")]
    with pytest.raises(RejectedChanges) as caught:
        target.apply(update(ORDERS, b"1", b"z", b"b"))
    assert "check violation, SQLSTATE 23514" in caught.value.rejections[0].reason


@WITH_AND_WITHOUT_STAGES
def test_a_partitioned_target(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text, document text) PARTITION BY RANGE (id)")
    target.execute("CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10)")
    target.execute("CREATE TABLE orders_2 PARTITION OF orders FOR VALUES FROM (10) TO (20)")
    target.apply(insert(ORDERS, b"1", b"a", b"x"), insert(ORDERS, b"11", b"b", b"y"))
    target.apply(update(ORDERS, b"12", b"c", UNCHANGED, old=(b"1", None, None)), delete(ORDERS, b"11", None, None))
    assert orders(target) == [("12", "c", "x")]


def test_a_partitioned_target_without_a_key(target: Target) -> None:
    target.execute("CREATE TABLE events (at text, data jsonb) PARTITION BY LIST (at)")
    target.execute("CREATE TABLE events_a PARTITION OF events FOR VALUES IN ('a')")
    target.execute("CREATE TABLE events_b PARTITION OF events FOR VALUES IN ('b')")
    target.apply(insert(EVENTS, b"a", b"1"), insert(EVENTS, b"b", b"1"))
    target.apply(delete(EVENTS, b"a", b"1"), update(EVENTS, b"a", b"2", old=(b"b", b"1")))
    assert target.table("public", "events") == [("a", "2")]


@WITH_AND_WITHOUT_STAGES
def test_pieces_of_one_shape_in_one_batch_do_not_meet(target: Target) -> None:
    """They share a temporary table, which is emptied in between: by DELETE, and by TRUNCATE once much was deleted."""
    keyless = table("public.keyless", "note text", key=())
    large = [insert(keyless, b"x" * 1000) for _ in range(200)]
    few = [insert(keyless, b"y") for _ in range(3)]
    for _ in range(2):
        target.apply_partitions([few], [few], [large], [large], [few])
    assert target.rows("SELECT left(note, 1), count(*) FROM keyless GROUP BY 1 ORDER BY 1") == [("x", 800), ("y", 18)]


def test_few_changes_to_a_large_table_do_not_scan_it(new_target: Callable[..., Target]) -> None:
    """Temporary tables have no statistics, and what the planner assumes makes a scan of the target look cheap."""
    target = new_target()
    target.apply(insert(ORDERS, b"1", b"a", b"b"), insert(LINES, b"1", b"x", b"1"))
    target.execute("INSERT INTO orders SELECT n, 'filler', 'filler' FROM generate_series(2, 50000) n")
    before = scans(target)
    target.apply(
        update(ORDERS, b"2", b"x", UNCHANGED),
        delete(ORDERS, b"3", None, None),
        update(ORDERS, b"-1", b"x", UNCHANGED, old=(b"4", None, None)),
    )
    assert scans(target) == before


def scans(target: Target) -> list[tuple[object, ...]]:
    """Sequential scans of orders; a session reports them when it ends."""
    target.sink.close()
    sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgsluice worker' AND datname = current_database()"
    wait_until(lambda: not target.rows(sessions), what="end of the sink's session")
    return target.rows("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'orders'")
