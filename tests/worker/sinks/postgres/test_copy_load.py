"""Copied rows on their way into the target: raw, once, whatever is there and whatever breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.batch import STREAM_CREATED, apply_copied, write, write_copied
from pgsluice.testing.changes_builder import copied, delete, insert, message, restart, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.sink import NOTHING_APPLIED
from tests.worker.sinks.postgres.commit_cutter import CommitCutter
from tests.worker.sinks.postgres.conftest import Target

ORDERS = table("public.orders", "id bigint", "note text")
EVENTS = table("public.events", "note text", key=(), identity=ReplicaIdentity.FULL)


def test_copied_rows_are_there_with_the_number_of_them_and_no_trace_of_messages(target: Target) -> None:
    apply_copied(
        target.sink,
        [
            [copied(1, ORDERS), copied(2, ORDERS, (b"1", b"a"), (b"2", None)), copied(3, EVENTS, (b"x",))],
            [copied(4, EVENTS, (b"",))],
        ],
    )
    assert target.table("public", "orders") == [("1", "a"), ("2", None)]
    assert target.table("public", "events") == [("",), ("x",)]
    assert target.rows("SELECT snapshot_sequence, sequence, changes, copied_rows FROM pgsluice.applied") == [(4, 0, 0, 4)]
    assert target.rows("SELECT * FROM pgsluice.copied") == []


def test_a_message_for_several_tables_is_loaded_into_all_of_them_once(target: Target) -> None:
    archive = replace(EVENTS, schema="archive", origin=(EVENTS.schema, EVENTS.name))
    messages = [
        rows for n in (1, 2) for rows in (replace(copied(n, EVENTS, (b"a",)), more_follow=True), copied(n, archive, (b"a",)))
    ]
    write_copied(target.sink, [messages[:2]])
    apply_copied(target.sink, [messages])
    assert target.table("public", "events") == target.table("archive", "events") == [("a",), ("a",)]


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_target_that_counts_other_rows_than_the_source_keeps_none_of_them(target: Target, is_staged: bool) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    if is_staged:
        target.execute("INSERT INTO orders VALUES (1, 'old')")
    wrong = replace(copied(1, ORDERS, (b"1", b"a"), (b"2", b"b")), rows=3)
    with pytest.raises(TerminalError, match=r"3 copied rows went into table 'public\.orders', and the target counted 2"):
        apply_copied(target.sink, [[wrong]])
    assert target.table("public", "orders") == ([("1", "old")] if is_staged else [])


def test_rows_that_a_trigger_of_the_targets_leaves_out_are_its_own_affair(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    target.execute(
        "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN CASE NEW.id % 2 WHEN 1 THEN NEW END; END'"
    )
    target.execute("CREATE TRIGGER odd BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION odd()")
    target.execute("ALTER TABLE orders ENABLE ALWAYS TRIGGER odd")
    apply_copied(target.sink, [[copied(1, ORDERS, (b"1", b"a"), (b"2", b"b"))]])
    assert target.table("public", "orders") == [("1", "a")]


def test_a_table_without_rows_is_made(target: Target) -> None:
    apply_copied(target.sink, [[copied(1, ORDERS)]])
    assert target.table("public", "orders") == []


def test_a_message_of_another_attempt_is_loaded_once_however_the_partitions_are_cut(target: Target) -> None:
    messages = [copied(n, EVENTS, (b"%d" % n,)) for n in range(1, 7)]
    write_copied(target.sink, [messages[1:4]])
    write_copied(target.sink, [messages[:2], messages[4:5]])
    apply_copied(target.sink, [messages[:3], messages[3:]])
    assert target.table("public", "events") == [(str(n),) for n in range(1, 7)]


def test_a_task_that_comes_after_the_position_has_moved_loads_nothing(target: Target) -> None:
    late = target.sink.writer()
    apply_copied(target.sink, [[copied(1, EVENTS, (b"a",))]])
    assert late == target.sink.writer()
    write_copied(target.sink, [[copied(1, EVENTS, (b"a",))]])
    assert target.table("public", "events") == [("a",)]
    assert target.rows("SELECT * FROM pgsluice.copied") == []


def test_workers_load_the_same_message_apart(target: Target) -> None:
    other = target.new_sink("other")
    other.open()
    apply_copied(target.sink, [[copied(1, EVENTS, (b"a",))]])
    apply_copied(other, [[copied(1, EVENTS, (b"a",))]])
    assert target.table("public", "events") == [("a",), ("a",)]


def test_copied_rows_that_a_crash_of_the_target_took_are_asked_for_again(target: Target) -> None:
    """Tasks commit without waiting for the disk, so a crash takes rows and note together."""
    batch = [[copied(1, EVENTS, (b"a",))], [copied(2, EVENTS, (b"b",))]]
    receipts = write_copied(target.sink, batch)
    target.execute("DELETE FROM public.events WHERE note = 'b'; DELETE FROM pgsluice.copied WHERE sequence = 2")
    with pytest.raises(TransientError, match="loaded again"):
        target.sink.commit(receipts, STREAM_CREATED)
    assert apply_copied(target.sink, batch).snapshot_sequence == 2
    assert target.table("public", "events") == [("a",), ("b",)]


@pytest.mark.parametrize("reaches_server", [True, False])
def test_a_load_without_an_answer_is_neither_lost_nor_repeated(target: Target, reaches_server: bool) -> None:
    server = target.settings.target
    with CommitCutter(server.host, server.port, reaches_server) as cutter:
        target.settings = replace(target.settings, target=replace(server, port=cutter.port))
        apply_copied(target.sink, [[copied(1, EVENTS, (b"a",))]])
        cutter.cut_next_commit.set()
        receipts = write_copied(target.sink, [[copied(2, EVENTS, (b"b",))]])  # the task's own second attempt
        assert not cutter.cut_next_commit.is_set()
        target.sink.commit(receipts, STREAM_CREATED)
    assert target.table("public", "events") == [("a",), ("b",)]


def test_a_position_that_somebody_removed_takes_the_notes_with_it_and_stops_tasks(target: Target) -> None:
    write_copied(target.sink, [[copied(1, EVENTS, (b"a",))]])
    target.execute("DELETE FROM pgsluice.applied")
    assert target.rows("SELECT * FROM pgsluice.copied") == []
    with pytest.raises(TerminalError, match=r"is gone from pgsluice\.applied"):
        write_copied(target.sink, [[copied(2, EVENTS, (b"b",))]])


def test_rows_that_are_there_already_are_overwritten(target: Target) -> None:
    target.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY, note text, kept text DEFAULT 'kept')")
    target.execute("INSERT INTO public.orders VALUES (2, 'old'), (9, 'untouched')")
    rows = [copied(1, ORDERS, (b"1", b"a"), (b"2", b"b")), copied(2, EVENTS, (b"x",)), copied(3, ORDERS, (b"3", None))]
    apply_copied(target.sink, [rows])
    assert target.table("public", "orders") == [
        ("1", "a", "kept"),
        ("2", "b", "kept"),
        ("3", None, "kept"),
        ("9", "untouched", "kept"),
    ]
    assert target.table("public", "events") == [("x",)]
    apply_copied(target.sink, [[copied(4, ORDERS, (b"9", b"met"))]])
    assert target.rows("SELECT note FROM public.orders WHERE id = 9") == [("met",)]


def test_a_column_that_the_target_generates_is_left_to_it(target: Target) -> None:
    target.execute(
        "CREATE TABLE public.items (id bigint PRIMARY KEY, price numeric, gross numeric GENERATED ALWAYS AS (price * 2) STORED)"
    )
    items = table("public.items", "id bigint", "gross numeric", "price numeric")
    apply_copied(target.sink, [[copied(1, items, (b"1", b"999", b"1.5"), (b"2", None, None))]])
    apply_copied(target.sink, [[copied(2, items, (b"1", b"999", b"2.5"))]])
    assert target.table("public", "items") == [("1", "2.5", "5.0"), ("2", None, None)]


def test_identity_columns_take_the_sources_values(target: Target) -> None:
    target.execute("CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
    apply_copied(target.sink, [[copied(1, ORDERS, (b"7", b"a"))]])
    assert target.table("public", "orders") == [("7", "a")]


def test_a_partitioned_target_routes_rows_and_is_emptied_whole(target: Target) -> None:
    target.execute(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id);"
        "CREATE TABLE public.low PARTITION OF public.orders FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE public.high PARTITION OF public.orders FOR VALUES FROM (10) TO (20)"
    )
    apply_copied(target.sink, [[copied(1, ORDERS, (b"1", b"a"), (b"11", b"b"))]])
    assert target.rows("SELECT id FROM public.high") == [(11,)]
    apply_copied(target.sink, [[restart(2, ORDERS)]])
    assert target.table("public", "orders") == []


def test_a_table_that_others_refer_to_is_emptied_too(target: Target) -> None:
    target.settings = replace(target.settings, disable_foreign_keys=True)
    target.execute(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, note text);"
        "CREATE TABLE public.lines (id bigint PRIMARY KEY, order_id bigint REFERENCES public.orders)"
    )
    lines = table("public.lines", "id bigint", "order_id bigint")
    apply_copied(target.sink, [[copied(1, lines, (b"1", b"7")), copied(2, ORDERS, (b"7", b"a"))]])
    apply_copied(target.sink, [[restart(3, ORDERS)]])
    assert (target.table("public", "orders"), target.table("public", "lines")) == ([], [("1", "7")])


def test_emptying_a_table_leaves_what_inherits_from_it(target: Target) -> None:
    target.execute(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, note text);"
        "CREATE TABLE public.special () INHERITS (public.orders); INSERT INTO public.special VALUES (5, 'child')"
    )
    apply_copied(target.sink, [[copied(1, ORDERS, (b"1", b"a"))]])
    apply_copied(target.sink, [[restart(2, ORDERS)]])
    assert target.table("public", "orders") == [("5", "child")]


def test_rows_that_come_before_those_they_refer_to_are_refused_with_the_way_out(target: Target) -> None:
    target.execute(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, note text);"
        "CREATE TABLE public.lines (id bigint PRIMARY KEY, order_id bigint REFERENCES public.orders)"
    )
    lines = table("public.lines", "id bigint", "order_id bigint")
    with pytest.raises(TerminalError, match=r"public\.lines.*foreign key.*target-disable-foreign-keys: true"):
        write_copied(target.sink, [[copied(1, lines, (b"1", b"7"))]])
    allowed = target.new_sink(disable_foreign_keys=True)
    allowed.open()
    apply_copied(allowed, [[copied(1, lines, (b"1", b"7"))]])
    assert target.table("public", "lines") == [("1", "7")]


@pytest.mark.parametrize(
    ("definition", "place"),
    [
        ("id bigint PRIMARY KEY, note varchar(3)", "column 'note'"),
        ("id bigint PRIMARY KEY, note date", "column 'note'"),
        ("id bigint PRIMARY KEY, note text CHECK (length(note) < 4)", "constraint 'orders_note_check'"),
        ("id bigint PRIMARY KEY, note text UNIQUE", "constraint 'orders_note_key'"),
    ],
)
def test_a_row_that_the_target_refuses_is_told_by_place_and_not_by_value(target: Target, definition: str, place: str) -> None:
    target.execute(f"CREATE TABLE public.orders ({definition})")
    with pytest.raises(RejectedChanges) as raised:
        write_copied(target.sink, [[copied(1, ORDERS, (b"1", b"secret"), (b"2", b"secret"))]])
    assert raised.value.rejections[-1].position == copied_position(1, 1)
    for rejection in raised.value.rejections:
        assert place in rejection.reason
        assert "secret" not in rejection.reason
    assert target.table("public", "orders") == []
    assert target.sink.open() == NOTHING_APPLIED
    target.execute("DROP TABLE public.orders")
    apply_copied(target.sink, [[copied(1, ORDERS, (b"1", b"secret"), (b"2", b"secret"))]])
    assert target.table("public", "orders") == [("1", "secret"), ("2", "secret")]


def test_a_target_table_without_a_key_is_refused_before_rows_are_copied(target: Target) -> None:
    target.execute("CREATE TABLE public.orders (id bigint, note text)")
    with pytest.raises(TerminalError, match=r"no unique index on its key \(id\)"):
        write_copied(target.sink, [[copied(1, ORDERS, (b"1", b"a"))]])


def test_changes_meet_copied_rows(target: Target) -> None:
    apply_copied(target.sink, [[copied(1, ORDERS, (b"1", b"a"), (b"2", b"b"), (b"3", b"c"))]])
    target.apply(update(ORDERS, b"1", b"A"), delete(ORDERS, b"2", None), insert(ORDERS, b"4", b"d"))
    assert target.table("public", "orders") == [("1", "A"), ("3", "c"), ("4", "d")]


def test_own_tables_of_an_earlier_version_are_brought_up_to_date(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    target.execute(
        "ALTER TABLE pgsluice.applied DROP COLUMN snapshot_sequence, DROP COLUMN copied_rows;"
        "DROP TABLE pgsluice.copied; DROP TABLE pgsluice.pending_keys"
    )
    successor = target.new_sink()
    assert (successor.open().sequence, successor.open().snapshot_sequence) == (1, 0)
    apply_copied(successor, [[copied(1, EVENTS, (b"x",))]])
    successor.commit(write(successor, [[message(2, insert(ORDERS, b"2", b"b"))]]), STREAM_CREATED)
    assert target.table("public", "orders") == [("1", "a"), ("2", "b")]


def test_own_tables_of_a_newer_version_are_refused_and_left_alone(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    target.execute("COMMENT ON TABLE pgsluice.applied IS 'format 2: positions by lane'; DROP TABLE pgsluice.pending_keys")
    with pytest.raises(TerminalError, match=r"pgsluice have format 2, and this version reads 1: .*: install that version again"):
        target.new_sink().open()
    assert target.rows("SELECT to_regclass('pgsluice.pending_keys')") == [(None,)]
