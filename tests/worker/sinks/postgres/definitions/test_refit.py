"""A table that the source altered before it is copied again: the target's is made fit for the rows that come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import TableDefined, TableDefinition
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import copied, insert, restart, table
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, with_columns
from tests.worker.sinks.postgres.conftest import Target

WAS = table("public.orders", "id integer", "note text", "gone text")
NOW = table("public.orders", "id bigint", "note text", "serial integer")
ROW = (b"9000000000", b"new", b"1")
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@pytest.fixture
def target(new_target: Callable[[], Target]) -> Target:
    made = new_target()
    apply_copied(made.sink, [[copied(1, WAS, (b"1", b"a", b"x"))]])
    return made


def copy_again(target: Target) -> None:
    apply_copied(target.sink, [[restart(2, NOW)]])
    apply_copied(target.sink, [[copied(3, NOW, ROW, snapshot="second")]])


def test_columns_are_added_dropped_and_given_the_new_type(target: Target) -> None:
    copy_again(target)
    assert target.rows(COLUMNS) == [("id", "bigint"), ("note", "text"), ("serial", "integer")]
    assert target.table("public", "orders") == [("9000000000", "new", "1")]


def test_a_table_that_was_made_again_with_other_columns_has_them_at_the_target_too(target: Target) -> None:
    again = replace(NOW, oid=NOW.oid + 1)
    apply_copied(target.sink, [[restart(2, again)]])
    apply_copied(target.sink, [[copied(3, again, ROW, snapshot="second")]])
    assert target.rows(COLUMNS) == [("id", "bigint"), ("note", "text"), ("serial", "integer")]
    assert target.table("public", "orders") == [("9000000000", "new", "1")]


@pytest.mark.parametrize(
    ("columns", "is_primary"),
    [(("code text", "note text"), True), (("id integer", "code text"), False)],
    ids=["the earlier key's column went", "it stays"],
)
def test_a_table_with_another_key_has_one_for_it_at_the_target(
    target: Target, columns: tuple[str, ...], is_primary: bool
) -> None:
    target.sink.finish_copy()  # builds the key
    apply_copied(target.sink, [[restart(2, table("public.orders", *columns, key=["code"]))]])
    query = "SELECT pg_get_indexdef(indexrelid), indisprimary FROM pg_index WHERE indrelid = 'orders'::regclass"
    assert (True, is_primary) in [("(code)" in definition, primary) for definition, primary in target.rows(query)]


def test_a_table_that_shares_its_place_at_the_target_with_another_leaves_it_as_it_is(new_target: Callable[..., Target]) -> None:
    target = new_target()
    apply_copied(target.sink, [[copied(1, WAS, (b"1", b"a", b"x"))]])
    other = replace(WAS, oid=WAS.oid + 1, columns=WAS.columns[:2], origin=("public", "others"))
    apply_copied(target.sink, [[restart(2, other)]])
    assert [name for name, _ in target.rows(COLUMNS)] == ["id", "note", "gone"]


def test_a_column_of_another_type_than_the_source_had_keeps_it(target: Target) -> None:
    target.database.execute("ALTER TABLE orders ALTER id TYPE numeric")
    copy_again(target)
    assert target.rows(COLUMNS)[0] == ("id", "numeric")
    assert target.table("public", "orders") == [("9000000000", "new", "1")]


def test_where_the_sources_types_were_never_noted_columns_keep_theirs(target: Target) -> None:
    """An earlier version noted none."""
    target.database.execute("UPDATE pgsluice.tables SET column_types = NULL")
    apply_copied(target.sink, [[restart(2, NOW)]])
    assert target.rows(COLUMNS) == [("id", "integer"), ("note", "text"), ("gone", "text"), ("serial", "integer")]


def test_a_table_that_another_refers_to_is_emptied_too(target: Target) -> None:
    target.sink.finish_copy()  # builds the key
    target.database.execute("CREATE TABLE referring (id int REFERENCES orders)")
    copy_again(target)
    assert target.table("public", "orders") == [("9000000000", "new", "1")]


def test_a_column_that_the_source_has_no_more_may_stay(new_target: Callable[..., Target]) -> None:
    target = new_target(policies={"drop-column": "keep"})
    apply_copied(target.sink, [[copied(1, WAS, (b"1", b"a", b"x"))]])
    copy_again(target)
    assert [name for name, _ in target.rows(COLUMNS)] == ["id", "note", "gone", "serial"]


def test_what_a_person_is_to_look_at_stops_before_the_table_is_emptied(new_target: Callable[..., Target]) -> None:
    target = new_target(policies={"alter-type": "stop"})
    apply_copied(target.sink, [[copied(1, WAS, (b"1", b"a", b"x"))]])
    with pytest.raises(TerminalError, match=r"copied again because the source altered it \(alter-type\)"):
        apply_copied(target.sink, [[restart(2, NOW)]])
    assert target.table("public", "orders") == [("1", "a", "x")]


def test_a_table_that_fits_is_only_emptied(target: Target) -> None:
    target.database.execute("CREATE VIEW of_orders AS SELECT gone FROM orders")
    apply_copied(target.sink, [[restart(2, WAS)]])
    assert target.table("public", "orders") == []
    assert [name for name, _ in target.rows(COLUMNS)] == ["id", "note", "gone"]


def test_a_column_that_became_text_for_want_of_its_type_gets_it(new_target: Callable[..., Target]) -> None:
    target, moods = new_target(), table("public.orders", "id integer", "mood public.mood", "note text", "other public.other")
    apply_copied(target.sink, [[copied(1, moods, (b"1", b"sad", b"a", b"x"))]])
    target.sink.finish_copy()
    target.apply(insert(moods, b"2", b"sad", b"b", b"y"))
    assert [kind for _, kind in target.rows(COLUMNS)] == ["integer", "text", "text", "text"]
    target.execute("CREATE TYPE public.mood AS ENUM ('sad')")
    apply_copied(target.sink, [[restart(2, moods)]])
    apply_copied(target.sink, [[copied(3, moods, (b"1", b"sad", b"a", b"x"), snapshot="second")]])
    assert [kind for _, kind in target.rows(COLUMNS)] == ["integer", "mood", "text", "text"]
    target.execute("CREATE TYPE public.other AS ENUM ('x')")
    apply_copied(target.sink, [[restart(4, moods)]])
    apply_copied(target.sink, [[copied(5, moods, (b"1", b"sad", b"a", b"x"), snapshot="third")]])
    assert [kind for _, kind in target.rows(COLUMNS)] == ["integer", "mood", "text", "other"]


def test_a_column_that_somebody_made_as_text_stays_text(new_target: Callable[..., Target]) -> None:
    target, moods = new_target(), table("public.orders", "id integer", "mood public.mood")
    target.execute("CREATE TYPE public.mood AS ENUM ('sad'); CREATE TABLE orders (id int PRIMARY KEY, mood text)")
    apply_copied(target.sink, [[copied(1, moods, (b"1", b"sad"))]])
    apply_copied(target.sink, [[restart(2, moods)]])
    assert [kind for _, kind in target.rows(COLUMNS)] == ["integer", "text"]


def numbered(was: Table, *columns: str) -> Table:
    """``number name type`` each."""
    made = table(was.qualified_name, *(text.partition(" ")[2] for text in columns))
    numbers = [int(text.partition(" ")[0]) for text in columns]
    described = tuple(replace(column, number=number) for column, number in zip(made.columns, numbers, strict=True))
    return replace(made, oid=was.oid, columns=described)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (["1 id bigint", "2 remark text", "3 gone text"], ["id", "remark", "gone"]),
        (["1 id integer", "2 gone text", "3 note text"], ["id", "gone", "note"]),
        (["1 id integer", "2 gone text", "4 note bigint"], ["id", "gone", "note"]),
        (["1 note integer", "2 gone text", "3 id text"], ["note", "gone", "id"]),
    ],
    ids=["renamed", "two change names", "a name is given to a new one", "three change names"],
)
def test_columns_that_were_renamed_before_the_copy_keep_what_the_target_has_of_them(
    new_target: Callable[..., Target], columns: list[str], found: list[str]
) -> None:
    target = new_target()
    was = numbered(WAS, "1 id integer", "2 note text", "3 gone text")
    apply_copied(target.sink, [[copied(1, was, (b"1", b"a", b"x"))]])
    target.database.execute("CREATE INDEX of_note ON orders (note); COMMENT ON COLUMN orders.note IS 'mine'")
    target.database.execute("CREATE VIEW of_orders AS SELECT note FROM orders")
    now = numbered(WAS, *columns)
    apply_copied(target.sink, [[restart(2, now)]])
    apply_copied(target.sink, [[copied(3, now, (b"2", b"b", b"3"), snapshot="second")]])
    assert [name for name, _ in target.rows(COLUMNS)] == found
    assert target.rows("SELECT note FROM of_orders") == [("b",)]
    assert target.rows("SELECT col_description('orders'::regclass, 2)") == [("mine",)]


def test_a_column_that_is_renamed_at_the_source_alone_still_gets_its_rows(new_target: Callable[..., Target]) -> None:
    target = new_target(policies={"rename-column": "ignore"})
    was, now = numbered(WAS, "1 id integer", "2 note text"), numbered(WAS, "1 id bigint", "2 remark text")
    apply_copied(target.sink, [[copied(1, was, (b"1", b"a"))]])
    apply_copied(target.sink, [[restart(2, now)]])
    apply_copied(target.sink, [[copied(3, now, (b"2", b"b"), snapshot="second")]])
    assert target.rows("SELECT id::text, note FROM orders") == [("2", "b")]


def test_a_type_that_the_target_lacks_stops_the_copy_and_makes_no_text(target: Target) -> None:
    now = table("public.orders", "id public.elsewhere", "note text", "gone text")
    with pytest.raises(TerminalError, match=r"from type integer to public.elsewhere, which the target does not have"):
        apply_copied(target.sink, [[restart(2, now)]])
    assert target.rows(COLUMNS)[0] == ("id", "integer")


MOOD = column(3, "mood", type_oid=70, type_name="public.mood")
TOLD = with_columns(ID, NOTE, MOOD)
AS_TOLD = ("id bigint", "note text", "mood public.mood")


def told(*names: str, numbers: tuple[int, ...] = ()) -> Table:
    """The table of the definitions as its rows describe it."""
    made = table("public.t", *names)
    found = numbers or range(1, len(names) + 1)
    columns = tuple(replace(each, number=number) for each, number in zip(made.columns, found, strict=True))
    return replace(made, oid=TABLE.oid, columns=columns)


def define(target: Target, now: TableDefinition, was: TableDefinition) -> None:
    target.apply(PublishedDefinition(TableDefined("ALTER TABLE", now), was))


def recopied(target: Target, now: Table) -> list[str]:
    """The columns of the target's table when ``now`` is copied again."""
    begin = target.sink.open().snapshot_sequence + 1
    values = {"bigint": b"1", "text": b"x", "public.mood": b"sad"}
    row = tuple(values[column.type_name] for column in now.columns)
    apply_copied(target.sink, [[restart(begin, now)]])
    apply_copied(target.sink, [[copied(begin + 1, now, row, snapshot=f"copy {begin}")]])
    return [f"{name} {kind}" for name, kind in target.rows(COLUMNS.replace("orders", "t"))]


@pytest.fixture
def plain(new_target: Callable[[], Target]) -> Target:
    """With a table that has no mood yet."""
    target, known = new_target(), told("id bigint", "note text")
    apply_copied(target.sink, [[copied(1, known, (b"1", b"a"))]])
    target.sink.finish_copy()
    target.apply(insert(known, b"2", b"b"))
    return target


def test_a_column_that_a_definition_added_as_text_for_want_of_its_type_gets_it(plain: Target) -> None:
    define(plain, TOLD, TABLE)
    plain.apply(insert(told(*AS_TOLD), b"3", b"c", b"sad"))
    assert recopied(plain, told(*AS_TOLD)) == ["id bigint", "note text", "mood text"]
    plain.execute("CREATE TYPE public.mood AS ENUM ('sad')")
    assert recopied(plain, told(*AS_TOLD)) == ["id bigint", "note text", "mood mood"]


@pytest.mark.parametrize("is_made_by_a_definition", [True, False])
def test_a_column_that_became_text_gets_its_type_whatever_was_altered_since(
    plain: Target, *, is_made_by_a_definition: bool
) -> None:
    if is_made_by_a_definition:
        define(plain, TOLD, TABLE)
    else:
        plain.execute("DROP TABLE t")
        apply_copied(plain.sink, [[restart(2, told(*AS_TOLD))]])
    later = with_columns(ID, NOTE, replace(MOOD, name="feeling"), column(4, "more"))
    define(plain, later, TOLD)
    names = ("id bigint", "note text", "feeling public.mood", "more text")
    plain.apply(insert(told(*names), b"4", b"d", b"sad", b"x"))
    plain.execute("CREATE TYPE public.mood AS ENUM ('sad')")
    assert recopied(plain, told(*names)) == ["id bigint", "note text", "feeling mood", "more text"]


def test_a_column_that_was_text_and_renamed_without_a_word_gets_its_type(plain: Target) -> None:
    plain.execute("DROP TABLE t")
    apply_copied(plain.sink, [[restart(2, told(*AS_TOLD))]])
    names = ("id bigint", "note text", "feeling public.mood")
    assert recopied(plain, told(*names)) == ["id bigint", "note text", "feeling text"]
    plain.execute("CREATE TYPE public.mood AS ENUM ('sad')")
    assert recopied(plain, told(*names)) == ["id bigint", "note text", "feeling mood"]


def test_a_column_that_a_copy_added_as_text_for_want_of_its_type_gets_it(plain: Target) -> None:
    assert recopied(plain, told(*AS_TOLD)) == ["id bigint", "note text", "mood text"]
    plain.execute("CREATE TYPE public.mood AS ENUM ('sad')")
    assert recopied(plain, told(*AS_TOLD)) == ["id bigint", "note text", "mood mood"]


def test_a_column_that_somebody_made_as_text_before_the_source_had_it_stays_text(plain: Target) -> None:
    plain.execute("ALTER TABLE t ADD mood text")
    define(plain, TOLD, TABLE)
    plain.apply(insert(told(*AS_TOLD), b"3", b"c", b"sad"))
    plain.execute("CREATE TYPE public.mood AS ENUM ('sad')")
    define(plain, replace(TOLD, columns=(*TOLD.columns, column(4, "more"))), TOLD)
    assert recopied(plain, told(*AS_TOLD, "more text")) == ["id bigint", "note text", "mood text", "more text"]
