"""The sink's side of the protocol: the position moves with the data, once, whatever breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgsluice.shared.errors import Cause, TerminalError, TransientError, UsageError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.testing.changes_builder import delete, insert, message, table, update
from pgsluice.worker.sinks.postgres.target import statement_watch
from pgsluice.worker.sinks.postgres.writer import INLINE_BYTES, RECEIPTS_BYTES, SMALLEST_STAGED_BYTES, WIDE_ROW_BYTES
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Partition
from tests.servers import PostgresServer
from tests.waiting import wait_until
from tests.worker.sinks.postgres.commit_cutter import CommitCutter
from tests.worker.sinks.postgres.conftest import EVERY_WAY, WITH_AND_WITHOUT_STAGES, Target

ORDERS = table("public.orders", "id bigint", "note text")

NewTarget = Callable[..., Target]


def position(target: Target) -> list[tuple[object, ...]]:
    return target.rows("SELECT sequence, commit_lsn::text, stream_created, batches, changes FROM pgsluice.applied")


def test_the_position_is_kept_with_the_data(target: Target) -> None:
    assert target.new_sink().open() == NOTHING_APPLIED
    applied = target.apply_partitions(
        [[insert(ORDERS, b"1", b"a")], [insert(ORDERS, b"2", b"b")]], [[delete(ORDERS, b"1", None)]]
    )
    assert applied == Applied(3, 3000, 3, STREAM_CREATED)
    assert target.new_sink().open() == applied
    assert position(target) == [(3, "0/BB8", STREAM_CREATED, 1, 3)]
    committed_at = target.rows("SELECT committed_at FROM pgsluice.applied")
    assert committed_at == [(datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=3),)]


def test_workers_and_groups_have_positions_of_their_own(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    assert target.new_sink("other").open() == NOTHING_APPLIED
    assert target.sink.open().sequence == 1


def test_the_rules_that_a_batch_went_through_are_kept_with_its_position(target: Target) -> None:
    receipts = [replace(receipt, rules="5f0c") for receipt in target.write([[insert(ORDERS, b"1", b"a")]])]
    applied = target.sink.commit(receipts, STREAM_CREATED)
    assert applied.rules == "5f0c"
    assert target.new_sink().open() == applied
    assert target.apply(insert(ORDERS, b"2", b"b")).rules == ""


@WITH_AND_WITHOUT_STAGES
def test_a_batch_that_comes_twice_is_applied_once(target: Target) -> None:
    events = table("public.events", "note text", key=())
    receipts = target.write([[insert(events, b"a")]])
    target.sink.commit(receipts, STREAM_CREATED)
    assert target.sink.commit(receipts, STREAM_CREATED).sequence == 1
    again = target.new_sink()
    again.open()
    again.commit(write(again, [[message(1, insert(events, b"a"))]]), STREAM_CREATED)
    assert target.table("public", "events") == [("a",)]
    assert position(target)[0][3] == 1


@WITH_AND_WITHOUT_STAGES
def test_receipts_that_are_applied_are_passed_over_and_the_rest_is_applied(target: Target) -> None:
    events = table("public.events", "note text", key=())
    target.apply(insert(events, b"a"))
    receipts = write(target.sink, [[message(1, insert(events, b"a"))], [message(2, insert(events, b"b"))]])
    assert target.sink.commit(receipts, STREAM_CREATED).sequence == 2
    assert target.table("public", "events") == [("a",), ("b",)]


def test_the_messages_of_a_recreated_stream_count_anew(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    receipts = write(target.sink, [[message(1, insert(ORDERS, b"2", b"b"))]])
    assert target.sink.commit(receipts, "another").stream_created == "another"
    assert target.table("public", "orders") == [("1", "a"), ("2", "b")]


def test_a_second_writer_of_the_same_name_is_refused(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    second = target.new_sink()
    second.open()
    receipts = write(second, [[message(2, insert(ORDERS, b"2", b"second"))]])
    target.apply(insert(ORDERS, b"3", b"first"))
    with pytest.raises(TerminalError, match="another worker of this name"):
        second.commit(receipts, STREAM_CREATED)
    assert target.table("public", "orders") == [("1", "a"), ("3", "first")]


@EVERY_WAY
def test_what_was_written_and_not_committed_leaves_no_trace(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    target.write([[insert(ORDERS, b"2", b"b")]])
    assert (target.table("public", "orders"), position(target)[0][0]) == ([("1", "a")], 1)
    successor = target.new_sink()
    assert successor.open().sequence == 1
    assert target.stages() == []
    successor.commit(write(successor, [[message(2, insert(ORDERS, b"3", b"c"))]]), STREAM_CREATED)
    assert target.table("public", "orders") == [("1", "a"), ("3", "c")]


def test_staging_tables_of_repeated_tasks_are_dropped_with_their_batch(new_target: NewTarget) -> None:
    target = new_target(0)
    target.new_sink("other").open()
    other = write(target.new_sink("other"), [[message(1, insert(ORDERS, b"9", b"of another worker"))]])
    target.write([[insert(ORDERS, b"1", b"a")]])
    target.sequence = 0
    receipts = target.write([[insert(ORDERS, b"1", b"a")]])
    later = target.new_sink().writer()
    assert other
    assert len(target.stages()) == 3
    target.sink.commit(receipts, STREAM_CREATED)
    assert len(target.stages()) == 1
    assert later.names == target.sink.writer().names


def test_pieces_of_medium_size_are_staged_only_when_receipts_have_no_room_for_them(new_target: NewTarget) -> None:
    target = new_target(INLINE_BYTES)
    tables = [table(f"public.t{number}", "id bigint", "note text") for number in range(5)]
    changes = message(1, *(insert(each, b"1", b"x" * (SMALLEST_STAGED_BYTES - 1000)) for each in tables))
    list(target.sink.writer().write(Partition(1, 1), iter([changes])))
    assert target.stages() == []
    list(target.sink.writer().write(Partition(1, 1, partitions=RECEIPTS_BYTES // INLINE_BYTES), iter([changes])))
    assert len(target.stages()) == 3


@pytest.mark.parametrize(("characters", "storage"), [(WIDE_ROW_BYTES // 2, "x"), (10 * WIDE_ROW_BYTES, "e")])
def test_staged_values_of_wide_rows_are_not_compressed(new_target: NewTarget, characters: int, storage: str) -> None:
    target = new_target(0)
    target.sink.open()
    receipts = target.write([[insert(ORDERS, b"1", b"x" * characters)]])
    assert storages(target, f"pgsluice.{target.stages()[0]}") == ["p", storage]
    target.sink.commit(receipts, STREAM_CREATED)
    assert target.table("public", "orders") == [("1", "x" * characters)]
    assert storages(target, "orders") == ["p", "x"]


def storages(target: Target, table_name: str) -> list[str]:
    """The storage modes of the table's columns, in their order."""
    query = f"SELECT attstorage::text FROM pg_attribute WHERE attrelid = '{table_name}'::regclass AND attnum > 0 ORDER BY attnum"
    return [mode for (mode,) in target.rows(query)]


def test_staged_rows_that_a_crash_of_the_target_took_are_asked_for_again(new_target: NewTarget) -> None:
    """Unlogged tables are empty after a crash; merging one would lose its rows."""
    with PostgresServer() as server:
        target = Target(server.create_database("target"), inline_bytes=0)
        target.apply(insert(ORDERS, b"1", b"a"))
        receipts = target.write([[insert(ORDERS, b"2", b"b")]])
        server.kill()
        server.start()
        with pytest.raises(TransientError):
            target.sink.commit(receipts, STREAM_CREATED)
        with pytest.raises(TransientError, match="staged again"):
            target.sink.commit(receipts, STREAM_CREATED)
        target.sink.commit(write(target.sink, [[message(2, insert(ORDERS, b"2", b"b"))]]), STREAM_CREATED)
        assert server.connect("target").execute("SELECT * FROM orders ORDER BY id").fetchall() == [(1, "a"), (2, "b")]


def test_staged_rows_that_somebody_dropped_are_asked_for_again(new_target: NewTarget) -> None:
    target = new_target(0)
    receipts = target.write([[insert(ORDERS, b"1", b"a")]])
    target.execute(f"DROP TABLE pgsluice.{target.stages()[0]}")
    with pytest.raises(TransientError, match="staged again"):
        target.sink.commit(receipts, STREAM_CREATED)


@WITH_AND_WITHOUT_STAGES
def test_a_lost_connection_is_transient_and_the_next_attempt_connects_anew(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    messages = target.messages([insert(ORDERS, b"2", b"b")])
    disconnect(target)
    with pytest.raises(TransientError):
        target.sink.commit(write(target.sink, [messages]), STREAM_CREATED)
    assert target.sink.commit(write(target.sink, [messages]), STREAM_CREATED).sequence == 2
    assert target.table("public", "orders") == [("1", "a"), ("2", "b")]


def disconnect(target: Target) -> None:
    """Ends the driver's session; tasks keep theirs."""
    target.rows(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'pgsluice worker' AND datname = current_database()"
    )


@WITH_AND_WITHOUT_STAGES
@pytest.mark.parametrize("reaches_server", [True, False])
def test_a_commit_without_an_answer_is_neither_lost_nor_repeated(target: Target, reaches_server: bool) -> None:
    """Whether it was done, only the row in pgsluice.applied knows."""
    events = table("public.events", "note text", key=())
    with CommitCutter(target.settings.target.host, target.settings.target.port, reaches_server) as cutter:
        target.settings = replace(target.settings, target=replace(target.settings.target, port=cutter.port))
        target.apply(insert(events, b"a"))
        messages = target.messages([insert(events, b"b")])
        receipts = write(target.sink, [messages])
        cutter.cut_next_commit.set()
        with pytest.raises(TransientError):
            target.sink.commit(receipts, STREAM_CREATED)
        assert not cutter.cut_next_commit.is_set()
        assert target.table("public", "events") == ([("a",), ("b",)] if reaches_server else [("a",)])
        assert target.sink.commit(write(target.sink, [messages]), STREAM_CREATED).sequence == 2
        target.apply(insert(events, b"c"))
    assert target.table("public", "events") == [("a",), ("b",), ("c",)]


def test_a_commit_without_an_answer_is_not_repeated_when_the_position_cannot_be_read_at_once(new_target: NewTarget) -> None:
    target = new_target()
    events = table("public.events", "note text", key=())
    server = target.settings.target
    with CommitCutter(server.host, server.port, reaches_server=True) as cutter:
        target.settings = replace(target.settings, target=replace(server, port=cutter.port))
        receipts = target.write([[insert(events, b"a")]])
        cutter.cut_next_commit.set()
        with pytest.raises(TransientError):
            target.sink.commit(receipts, STREAM_CREATED)
        with target.database.connect(autocommit=False) as other:
            other.execute("SELECT FROM pgsluice.applied FOR UPDATE")
            canceller = threading.Thread(target=cancel_the_waiting_worker, args=(target,))
            canceller.start()
            with pytest.raises(TransientError):
                target.sink.commit(receipts, STREAM_CREATED)
            canceller.join(timeout=120)
        assert target.sink.commit(receipts, STREAM_CREATED).sequence == 1
    assert target.table("public", "events") == [("a",)]


def cancel_the_waiting_worker(target: Target) -> None:
    """Its statement, not its connection."""
    waiting = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'pgsluice worker' AND wait_event_type = 'Lock' AND datname = current_database()"
    )
    wait_until(lambda: target.rows(waiting), what="the worker waits for the lock")


def test_open_waits_for_a_predecessors_transaction(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    successor = target.new_sink()
    opened: list[Applied] = []
    with target.database.connect(autocommit=False) as predecessor:
        predecessor.execute("UPDATE pgsluice.applied SET sequence = 7")
        opening = threading.Thread(target=lambda: opened.append(successor.open()))
        opening.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgsluice worker' AND wait_event_type = 'Lock'"
        wait_until(lambda: target.rows(waiting), what="the successor waits for the lock")
        predecessor.commit()
    opening.join(timeout=120)
    assert [applied.sequence for applied in opened] == [7]


def test_a_target_that_is_away_is_transient_and_one_that_refuses_us_is_a_wrong_setting(target: Target) -> None:
    settings = target.settings
    target.settings = replace(settings, target=replace(settings.target, port=1))
    with pytest.raises(TransientError, match=r"the target, PostgreSQL at .* does not answer"):
        target.new_sink().open()
    target.settings = replace(settings, target=replace(settings.target, dbname="nowhere"))
    with pytest.raises(UsageError, match=r"refuses user .* for database 'nowhere'.*check target-dbname"):
        target.new_sink().open()


def test_a_wrong_password_is_named_and_not_shown() -> None:
    with PostgresServer(password="right") as server:
        target = Target(server.create_database("target"), 0)
        target.settings = replace(target.settings, target=replace(target.settings.target, password="wrong-secret"))
        with pytest.raises(TransientError, match="password authentication failed") as caught:
            target.new_sink().open()
        assert "wrong-secret" not in str(caught.value)
        target.close()


def test_a_user_who_may_not_create_the_schema_is_told_what_to_grant(target: Target) -> None:
    target.execute("DROP ROLE IF EXISTS pgsluice_poor; CREATE ROLE pgsluice_poor LOGIN; DROP SCHEMA pgsluice CASCADE")
    target.settings = replace(target.settings, target=replace(target.settings.target, user="pgsluice_poor"))
    with pytest.raises(TerminalError, match=r"may not create schema pgsluice.*run there: GRANT CREATE ON DATABASE"):
        target.new_sink().open()
    target.execute("CREATE SCHEMA pgsluice AUTHORIZATION pgsluice_poor")
    with pytest.raises(TerminalError, match="session_replication_role"):
        target.new_sink(disable_foreign_keys=True).open()
    target.execute("DROP OWNED BY pgsluice_poor")
    target.execute("DROP ROLE pgsluice_poor")


def test_an_empty_partition_moves_the_position(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    receipts = write(target.sink, [[message(2)]])
    assert target.sink.commit(receipts, STREAM_CREATED).sequence == 2


def test_closing_twice_or_before_opening_does_nothing(target: Target) -> None:
    sink = target.new_sink()
    sink.close()
    sink.open()
    sink.close()
    sink.close()


def test_a_reader_never_sees_half_of_a_batch(target: Target) -> None:
    """Two tables whose sums are always equal, read while batches are applied."""
    left, right = (
        table("public.left_side", "id bigint", "amount bigint"),
        table("public.right_side", "id bigint", "amount bigint"),
    )
    target.apply(insert(left, b"1", b"0"), insert(right, b"1", b"0"))
    unequal: list[object] = []
    done = threading.Event()

    def read() -> None:
        with target.database.connect() as connection:
            while not done.is_set():
                amounts = connection.execute("SELECT l.amount, r.amount FROM left_side l, right_side r").fetchall()
                unequal.extend(row for row in amounts if row[0] != row[1])

    reader = threading.Thread(target=read)
    reader.start()
    for amount in range(1, 30):
        target.apply_partitions([[update(left, b"1", b"%d" % amount)]], [[update(right, b"1", b"%d" % amount)]])
    done.set()
    reader.join(timeout=120)
    assert unequal == []


def test_who_looks_sees_what_the_target_has_the_sink_wait_for(new_target: NewTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_watch, "LOOK_INTERVAL_S", 0.05)
    target, pulse = new_target(), Pulse()
    target.apply(insert(ORDERS, b"1", b"a"))
    successor = target.new_sink()
    successor.report_to(pulse)
    with target.database.connect() as predecessor:
        predecessor.execute("BEGIN; SELECT FROM pgsluice.applied FOR UPDATE")
        opening = threading.Thread(target=successor.open, daemon=True)
        opening.start()
        wait = wait_until(lambda: pulse.wait, what="a wait for the predecessor")
        assert (wait.cause, "a lock at the target" in wait.reason) == (Cause.OTHER, True)
        predecessor.execute("ROLLBACK")
        opening.join(30)
        assert (opening.is_alive(), pulse.wait) == (False, None)

    target.sink.report_to(pulse)
    with target.database.connect() as other:
        other.execute("BEGIN; LOCK TABLE public.orders")
        committing = threading.Thread(target=target.apply, args=[insert(ORDERS, b"2", b"b")], daemon=True)
        committing.start()
        assert wait_until(lambda: pulse.wait, what="a wait for the table").cause is Cause.LOCK
        other.execute("ROLLBACK")
        committing.join(30)
        assert (committing.is_alive(), pulse.wait) == (False, None)
