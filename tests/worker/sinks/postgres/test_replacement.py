"""Rows of a run that replaces all others: nobody sees them before they are whole, and then nobody sees others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from pgsluice.shared.broker.worker_records import UnchangedRows
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.testing.batch import STREAM_CREATED, apply_copied, write_copied
from pgsluice.testing.changes_builder import Row, begins_run, ends_run, of_run, table
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from tests.worker.sinks.postgres.commit_cutter import CommitCutter
from tests.worker.sinks.postgres.conftest import Target

ITEMS = table("public.items", "id bigint", "note text")
READS = 25


def mark(run: int) -> RunMark:
    return RunMark(run, 1000 * run, replaces=True)


def messages(run: int, *bodies: Sequence[Row]) -> list[CopiedRows]:
    """Of a whole run: each is of a batch of its own, and there are eight sequences for each run."""
    first = 8 * run
    rows = [of_run(first + number, ITEMS, mark(run), *body) for number, body in enumerate(bodies, 1)]
    return [begins_run(first, ITEMS, mark(run)), *rows, ends_run(first + 7, ITEMS, mark(run))]


def apply(target: Target, given: Sequence[CopiedRows]) -> None:
    for each in given:
        apply_copied(target.sink, [[each]])


def replace_with(target: Target, run: int, *bodies: Sequence[Row]) -> None:
    apply(target, messages(run, *bodies))


def waiting(target: Target) -> int:
    return len(
        target.rows("SELECT FROM pg_class WHERE relnamespace = 'pgsluice'::regnamespace AND relname ~ '^waiting_.*[0-9]$'")
    )


def test_rows_appear_when_the_run_is_whole_and_those_before_are_gone(target: Target) -> None:
    replace_with(target, 1, [(b"1", b"a"), (b"2", b"b")], [(b"3", b"c")])
    assert target.table("public", "items") == [("1", "a"), ("2", "b"), ("3", "c")]
    *begun, end = messages(2, [(b"2", b"b")], [(b"3", b"C"), (b"4", None)])
    apply(target, begun)
    assert target.table("public", "items") == [("1", "a"), ("2", "b"), ("3", "c")]
    assert waiting(target) == 1
    apply(target, [end])
    assert target.table("public", "items") == [("2", "b"), ("3", "C"), ("4", None)]
    assert waiting(target) == 0


def test_it_says_how_many_rows_were_there_already(target: Target) -> None:
    replace_with(target, 1, [(b"1", b"a"), (b"2", b"b"), (b"3", None)])
    assert target.sink.unchanged() == UnchangedRows(15, 0)
    replace_with(target, 2, [(b"1", b"a"), (b"2", b"B")], [(b"3", None), (b"4", b"d")])
    assert target.sink.unchanged() == UnchangedRows(23, 2)
    replace_with(target, 3)
    assert target.sink.unchanged() == UnchangedRows(31, 0)


def test_an_empty_run_leaves_nothing(target: Target) -> None:
    replace_with(target, 1, [(b"1", b"a")])
    replace_with(target, 2)
    assert target.table("public", "items") == []


def test_rows_of_a_run_that_was_given_up_never_appear(target: Target) -> None:
    replace_with(target, 1, [(b"1", b"a")])
    apply(target, messages(2, [(b"2", b"half")])[:-1])
    replace_with(target, 3, [(b"3", b"c")])
    assert target.table("public", "items") == [("3", "c")]
    apply(target, messages(4, [(b"4", b"half")])[:-1])
    merging = RunMark(5, 5000)
    apply(target, [begins_run(40, ITEMS, merging), of_run(41, ITEMS, merging, (b"5", b"merged"))])
    assert target.table("public", "items") == [("3", "c"), ("5", "merged")]
    assert waiting(target) == 0


def test_what_people_gave_the_table_stays_and_rows_that_are_the_same_are_not_written(target: Target) -> None:
    target.execute(
        "CREATE TABLE public.items (id bigint PRIMARY KEY, note text CHECK (note <> ''), seen timestamptz DEFAULT now());"
        "COMMENT ON TABLE public.items IS 'kept'; CREATE INDEX ON public.items (note); CREATE VIEW v AS SELECT * FROM items;"
        "CREATE TABLE lines (item bigint REFERENCES items); GRANT SELECT ON items TO public;"
    )
    replace_with(target, 1, [(b"1", b"a"), (b"2", b"b")])
    target.execute("INSERT INTO lines VALUES (1)")
    query = "SELECT 'items'::regclass::oid, obj_description('items'::regclass), relacl::text, (SELECT count(*) FROM v)"
    before = target.rows(f"{query}, (SELECT xmin::text FROM items WHERE id = 1) FROM pg_class WHERE oid = 'items'::regclass")
    replace_with(target, 2, [(b"1", b"a"), (b"3", b"c")])
    after = target.rows(f"{query}, (SELECT xmin::text FROM items WHERE id = 1) FROM pg_class WHERE oid = 'items'::regclass")
    assert after == before
    assert target.rows("SELECT id FROM items ORDER BY id") == [(1,), (3,)]
    with pytest.raises(TerminalError, match="foreign key"):
        replace_with(target, 3, [(b"3", b"c")])
    assert target.rows("SELECT id FROM items ORDER BY id") == [(1,), (3,)]


def test_a_row_that_the_table_would_refuse_is_told_before_the_run_is_whole(target: Target) -> None:
    target.execute("CREATE TABLE public.items (id bigint PRIMARY KEY, note text UNIQUE CHECK (note <> ''))")
    begin, first, second, _ = messages(1, [(b"1", b"a"), (b"2", b"")], [(b"3", b"a")])
    apply(target, [begin])
    with pytest.raises(RejectedChanges) as raised:
        write_copied(target.sink, [[first]])
    assert [each.position for each in raised.value.rejections] == [copied_position(first.sequence, 1)]
    apply(target, [replace(first, rows=1, data=memoryview(b"1\ta\n"))])
    with pytest.raises(RejectedChanges):
        write_copied(target.sink, [[second]])


def test_rows_may_exchange_a_unique_value(target: Target) -> None:
    target.execute("CREATE TABLE public.items (id bigint PRIMARY KEY, note text UNIQUE)")
    replace_with(target, 1, [(b"1", b"a"), (b"2", b"b")])
    replace_with(target, 2, [(b"1", b"b"), (b"2", b"a")])
    assert target.table("public", "items") == [("1", "b"), ("2", "a")]


def test_values_that_are_equal_and_not_the_same_are_written_and_types_without_equality_compared(target: Target) -> None:
    target.execute("CREATE TABLE public.items (id numeric PRIMARY KEY, note json)")
    replace_with(target, 1, [(b"1.0", b"{}"), (b"2", b"[1]")])
    replace_with(target, 2, [(b"1.00", b"{}"), (b"2", b"[1, 2]")])
    assert target.rows("SELECT id::text, note::text FROM items ORDER BY id") == [("1.00", "{}"), ("2", "[1, 2]")]


def test_a_partitioned_table_is_replaced_whole_and_what_inherits_from_one_is_left_alone(target: Target) -> None:
    target.execute(
        "CREATE TABLE public.items (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF items FOR VALUES FROM (10) TO (20)"
    )
    replace_with(target, 1, [(b"1", b"a"), (b"11", b"b")])
    replace_with(target, 2, [(b"2", b"a"), (b"11", b"c")])
    assert target.table("public", "items") == [("11", "c"), ("2", "a")]
    target.execute("DROP TABLE items; CREATE TABLE items (id bigint PRIMARY KEY, note text)")
    target.execute("CREATE TABLE child () INHERITS (items); INSERT INTO child VALUES (7, 'kept')")
    target.sink.close()
    target.sink.open()
    replace_with(target, 3, [(b"1", b"a")])
    assert target.table("public", "items") == [("1", "a"), ("7", "kept")]


@pytest.mark.parametrize("reaches_server", [True, False])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_commit_without_an_answer_is_neither_lost_nor_repeated(target: Target, at: int, reaches_server: bool) -> None:
    """The connection breaks in the commit that begins the run, in one of rows, or in the one that exchanges them; and a new
    process goes on."""
    replace_with(target, 1, [(b"1", b"old")])
    server = target.settings.target
    given = messages(2, [(b"2", b"a")], [(b"3", b"b")], [(b"4", b"c")])
    with CommitCutter(server.host, server.port, reaches_server) as cutter:
        target.sink.close()
        target.settings = replace(target.settings, target=replace(server, port=cutter.port))
        for number, each in enumerate(given):
            sink = target.new_sink()
            if sink.open().snapshot_sequence >= each.sequence:
                continue
            receipts = write_copied(sink, [[each]])
            if number == at:
                cutter.cut_next_commit.set()
                with suppress(TransientError):
                    sink.commit(receipts, STREAM_CREATED)
                sink.close()
                sink = target.new_sink()
                if sink.open().snapshot_sequence >= each.sequence:
                    continue
                receipts = write_copied(sink, [[each]])
            sink.commit(receipts, STREAM_CREATED)
            sink.close()
    assert target.table("public", "items") == [("2", "a"), ("3", "b"), ("4", "c")]


def test_readers_find_the_rows_of_one_run_whenever_they_look(target: Target) -> None:
    counts = (400, 90, 400, 20, 300)

    def body(run: int, count: int) -> list[Row]:
        return [(b"%d" % (n + 100 * run), b"%d" % run) for n in range(count)]

    replace_with(target, 1, body(1, counts[0]))
    seen: list[tuple[int, int, int]] = []
    is_over = threading.Event()

    def read() -> None:
        with target.database.connect() as connection:
            while not (is_over.is_set() and len(seen) > READS):
                found = connection.execute("SELECT count(*), min(note::int), max(note::int) FROM public.items").fetchone()
                assert found is not None
                seen.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for run, count in enumerate(counts[1:], 2):
            rows = body(run, count)
            replace_with(target, run, rows[: count // 2], rows[count // 2 :])
    finally:
        is_over.set()
        reader.join()
    assert {(count, first) for count, first, last in seen} <= set(zip(counts, range(1, 9), strict=False))
    assert all(first == last for _, first, last in seen)
    assert len({first for _, first, _ in seen}) > 1
