"""Tables that are behind the others, in a Postgres target: their keys wait for them, and what their tasks left is theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.testing.batch import STREAM_CREATED, apply, apply_copied, apply_in, write
from pgsluice.testing.changes_builder import copied, insert, message, table
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.sink import Lane, Receipt
from tests.logged import fields_of
from tests.waiting import wait_until
from tests.worker.sinks.postgres.conftest import Target

ORDERS = table("public.orders", "id bigint", "note text")
ADDED = table("public.added", "id bigint", "note text")
COHORT = frozenset({ADDED.oid})
WAITING = "SELECT count(*)::int FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
KEYS = "SELECT count(*)::int FROM pg_index WHERE indrelid = 'added'::regclass"


def in_lane(receipts: list[Receipt], lane: Lane) -> list[Receipt]:
    return [replace(receipt, lane=lane, cohort=COHORT) for receipt in receipts]


def test_the_others_do_not_wait_for_the_key_of_a_table_that_is_being_filled(new_target: Callable[..., Target]) -> None:
    target = new_target()
    apply(target.sink, [[message(1, insert(ORDERS, b"1", b"a"))]])
    apply_copied(target.sink, [[copied(1, ADDED, (b"1", b"a"))]])
    apply_in(target.sink, [[message(2, insert(ORDERS, b"2", b"b"))]], Lane.CHANGES, COHORT)
    assert target.rows(KEYS) == [(0,)]
    apply_in(target.sink, [[message(2, insert(ADDED, b"2", b"b"))]], Lane.CATCH_UP, COHORT)
    assert target.rows(KEYS) == [(1,)]
    assert target.table("public", "added") == [("1", "a"), ("2", "b")]


def test_a_copy_is_finished_while_a_batch_of_other_tables_is_committed(new_target: Callable[..., Target]) -> None:
    target = new_target()
    apply(target.sink, [[message(1, insert(ORDERS, b"1", b"a"))]])
    apply_copied(target.sink, [[copied(1, ADDED, (b"1", b"a"))]])
    batch = in_lane(write(target.sink, [[message(2, insert(ORDERS, b"2", b"b"))]]), Lane.CHANGES)
    committing = threading.Thread(target=target.sink.commit, args=[batch, STREAM_CREATED])
    with target.database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE orders")
        committing.start()
        wait_until(lambda: target.database.execute(WAITING) == [(1,)], what="the commit waits")
        target.sink.finish_copy()
        assert target.rows(KEYS) == [(1,)]
        assert committing.is_alive()
    committing.join()
    assert target.table("public", "orders") == [("1", "a"), ("2", "b")]


REFERRING = "CREATE TABLE added (id bigint PRIMARY KEY, note text); CREATE TABLE orders (id bigint REFERENCES added, note text)"
OTHER = table("public.other", "id bigint", "note text")


def test_foreign_keys_are_told_of_when_tables_fall_behind_and_need_not_refuse_rows_that_refer_to_them(
    new_target: Callable[..., Target], caplog: pytest.LogCaptureFixture
) -> None:
    target = new_target()
    target.execute(REFERRING + "; CREATE UNIQUE INDEX ON orders (id)")
    apply(target.sink, [[message(1, insert(OTHER, b"1", b"a"))]])
    assert "foreign keys" not in caplog.text
    for sequence in (2, 3):
        apply_in(target.sink, [[message(sequence, insert(OTHER, b"%d" % sequence, b"a"))]], Lane.CHANGES, COHORT)
    [said] = [fields_of(record) for record in caplog.records if "foreign keys of the target refuse rows" in record.getMessage()]
    assert said == {"tables": "public.orders", "remedy": "set target-disable-foreign-keys: true"}
    refers = [[message(4, insert(ORDERS, b"7", b"a"))]]
    for again in (TransientError, WriteAgain):
        with pytest.raises(again):
            apply_in(target.sink, refers, Lane.CHANGES, COHORT)
    with pytest.raises(RejectedChanges) as refused:
        apply_in(target.sink, refers, Lane.CHANGES, COHORT)
    assert "foreign key violation" in refused.value.rejections[0].reason
    caplog.clear()
    allowed = target.new_sink(disable_foreign_keys=True)
    allowed.open()
    apply_in(allowed, refers, Lane.CHANGES, COHORT)
    assert target.table("public", "orders") == [("7", "a")]
    assert "foreign keys" not in caplog.text


def test_what_is_written_ahead_for_tables_that_catch_up_stays_until_it_is_theirs(new_target: Callable[..., Target]) -> None:
    """Its messages are behind those that all others have applied."""
    for options in ({"inline_bytes": 0}, {"inline_bytes": 0, "hands_over": True}):
        target = new_target(**options)
        target.database.execute("DROP TABLE IF EXISTS orders, added; DROP SCHEMA IF EXISTS pgsluice CASCADE")
        apply(target.sink, [[message(1, insert(ORDERS, b"1", b"a"))]])
        apply_in(target.sink, [[message(n, insert(ORDERS, b"%d" % n, b"b")) for n in (2, 3, 4)]], Lane.CHANGES, COHORT)
        first, second = (write(target.sink, [[message(n, insert(ADDED, b"%d" % n, b"c"))]]) for n in (2, 3))
        target.sink.commit(in_lane(first, Lane.CATCH_UP), STREAM_CREATED)
        target.sink.commit(in_lane(second, Lane.CATCH_UP), STREAM_CREATED)
        assert target.table("public", "added") == [("2", "c"), ("3", "c")]
