"""Which of what a source tells is done at the target, by a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pgsluice.shared.wire.definition import TableDefined, TableDefinition, TableGone
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.testing.batch import apply, apply_copied
from pgsluice.testing.changes_builder import copied, insert, message, restart, table
from pgsluice.worker.definitions.policy import DEFAULT_POLICIES
from pgsluice.worker.sinks.postgres.definitions.alteration import Alteration
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables, TableDestination
from pgsluice.worker.sinks.postgres.own.own_tables import ensure_tables
from tests.servers import Database
from tests.waiting import wait_until
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column
from tests.worker.sinks.postgres.conftest import Target

WITHOUT_NOTE = replace(TABLE, columns=(ID,))
UNPUBLISHED = replace(TABLE, is_published=False, columns=tuple(replace(c, is_published=False) for c in (ID, NOTE)))


@pytest.mark.parametrize(
    ("was", "now", "left"),
    [
        (TABLE, WITHOUT_NOTE, ["id"]),
        (TABLE, UNPUBLISHED, ["id", "note"]),
        (UNPUBLISHED, replace(UNPUBLISHED, columns=(UNPUBLISHED.columns[0],)), ["id", "note"]),
        (None, WITHOUT_NOTE, ["id", "note"]),
    ],
)
def test_only_what_is_published_before_and_after_alters_the_target(
    target_database: Database, was: TableDefinition | None, now: TableDefinition, left: list[str]
) -> None:
    """A table that a group asks for, and that is not published, is told of as well: its columns carry nothing."""
    target_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    known_tables = KnownTables.of("group", "worker")
    with target_database.connect() as connection:
        ensure_tables(connection)
        [(oid,)] = connection.execute("SELECT 't'::regclass::oid::bigint").fetchall()
        there = replace(table("public.t", "id bigint", "note text"), oid=TABLE.oid)
        known_tables.remember(connection, [TableDestination(there, oid, {"id": 1, "note": 2})])
        with connection.transaction():
            alteration = Alteration(connection, known_tables, DEFAULT_POLICIES)
            alteration.apply(PublishedDefinition(TableDefined("ALTER TABLE", now), was))
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY 1"
    assert [name for (name,) in target_database.execute(columns)] == left


def test_a_table_is_altered_before_its_first_row_comes(target: Target) -> None:
    """As one that changes rarely, in a group that only streams."""
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text); CREATE TABLE other (id int)")
    before = replace(table("public.t", "id bigint", "note text"), oid=TABLE.oid)
    unfit, missing = table("public.other", "id bigint", "note text"), table("public.missing", "id bigint")
    assert target.sink.foresee([unfit, before, missing]) == []
    more = TableDefined("ALTER TABLE", replace(TABLE, columns=(ID, NOTE, column(3, "more"))))
    apply(target.sink, [[message(1, PublishedDefinition(more, TABLE))]])
    after = replace(table("public.t", "id bigint", "note text", "more text"), oid=TABLE.oid)
    apply(target.sink, [[message(2, insert(after, b"1", b"a", b"b"))]])
    assert target.table("public", "t") == [("1", "a", "b")]


@pytest.fixture
def dropping(target: Target) -> Target:
    target.policies = {"drop-table": "drop"}
    return target


GONE = PublishedDefinition(TableGone("DROP TABLE", TABLE.oid, "public", "t"), None)
OLD = replace(table("public.t", "id bigint", "note text"), oid=TABLE.oid)
NEW = replace(OLD, oid=TABLE.oid + 1)


@pytest.mark.parametrize("told", [GONE, PublishedDefinition(TableDefined("ALTER TABLE", WITHOUT_NOTE), TABLE)])
def test_definitions_of_a_table_leave_the_one_alone_that_was_made_again(dropping: Target, told: PublishedDefinition) -> None:
    """A copy of the new one may be applied before the stream tells what became of the old one."""
    sink = dropping.sink
    apply(sink, [[message(1, insert(OLD, b"1", b"old"))]])
    apply_copied(sink, [[restart(1, NEW, "first")]])
    apply_copied(sink, [[copied(2, NEW, (b"2", b"new"))]])
    apply(sink, [[message(2, told)]])
    assert dropping.table("public", "t") == [("2", "new")]
    apply(sink, [[message(3, PublishedDefinition(TableGone("DROP TABLE", NEW.oid, "public", "t"), None))]])
    assert dropping.rows("SELECT to_regclass('public.t') IS NULL") == [(True,)]


def test_a_dropped_table_leaves_rows_of_others_that_go_to_the_same_target(dropping: Target) -> None:
    """As routes let them, also those of other groups."""
    routed = replace(NEW, oid=TABLE.oid + 7, origin=("public", "u"))
    sink, another = dropping.sink, dropping.new_sink("another")
    apply(sink, [[message(1, insert(OLD, b"1", b"one"), insert(routed, b"2", b"two"))]])
    apply(sink, [[message(2, GONE)]])
    assert dropping.table("public", "t") == [("1", "one"), ("2", "two")]
    another.open()
    apply(another, [[message(1, insert(replace(OLD, oid=3), b"3", b"three"))]])
    apply(sink, [[message(3, PublishedDefinition(TableGone("DROP TABLE", routed.oid, "public", "u"), None))]])
    assert dropping.table("public", "t") == [("1", "one"), ("2", "two"), ("3", "three")]
    apply(another, [[message(2, PublishedDefinition(TableGone("DROP TABLE", 3, "public", "t"), None))]])
    assert dropping.rows("SELECT to_regclass('public.t') IS NULL") == [(True,)]


def test_a_target_that_another_worker_is_about_to_share_is_not_dropped(dropping: Target) -> None:
    """It notes its rows there in the transaction that has them."""
    sink, waiting = dropping.sink, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
    apply(sink, [[message(1, insert(OLD, b"1", b"one"))]])
    [(oid,)] = dropping.rows("SELECT 't'::regclass::oid::bigint")
    with dropping.database.connect() as another, ThreadPoolExecutor() as threads:
        another.execute("BEGIN; INSERT INTO t VALUES (2, 'two')")
        KnownTables.of("another", "worker").remember(another, [TableDestination(OLD, int(oid), {"id": 1, "note": 2})])
        told = threads.submit(apply, sink, [[message(2, GONE)]])
        wait_until(lambda: dropping.rows(waiting) == [(True,)], what="a worker that waits")
        another.execute("COMMIT")
        told.result()
    assert dropping.table("public", "t") == [("1", "one"), ("2", "two")]
