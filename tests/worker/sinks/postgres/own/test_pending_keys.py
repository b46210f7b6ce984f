"""Keys of tables that are made for a copy: built when the copy is there, whatever died in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.batch import STREAM_CREATED, apply_copied
from pgsluice.testing.changes_builder import copied, insert, restart, table, update
from tests.worker.sinks.postgres.conftest import Target

ORDERS = table("public.orders", "id bigint", "note text")
PEOPLE = table("public.people", "id bigint", "email text", identity=ReplicaIdentity.INDEX, identity_columns=("email",))


@pytest.fixture
def target(new_target: Callable[[], Target]) -> Target:
    target = new_target()
    apply_copied(target.sink, [[copied(1, ORDERS, (b"1", b"a"), (b"2", None))]])
    return target


def indexes(target: Target, name: str) -> list[tuple[object, ...]]:
    """The columns of each index, and whether it is the primary key."""
    return target.rows(
        "SELECT array_agg(a.attname::text ORDER BY a.attnum), i.indisprimary FROM pg_index i"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        f" WHERE i.indrelid = '{name}'::regclass AND i.indisunique GROUP BY i.indexrelid, i.indisprimary ORDER BY 2 DESC"
    )


def pending(target: Target) -> int:
    return len(target.rows("SELECT FROM pgsluice.pending_keys"))


def test_a_table_made_for_a_copy_has_its_columns_but_no_key_yet(target: Target) -> None:
    assert indexes(target, "orders") == []
    assert target.rows("SELECT attnotnull FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'id'") == [(True,)]
    apply_copied(target.sink, [[copied(2, ORDERS, (b"3", b"c"))]])
    assert indexes(target, "orders") == []


def test_the_end_of_the_copy_builds_the_key(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    target.sink.finish_copy()
    assert indexes(target, "orders") == [(["id"], True)]
    assert "built a key" in caplog.text
    assert pending(target) == 0
    target.sink.finish_copy()
    assert caplog.text.count("built a key") == 1


def test_the_first_changes_find_the_key_built(target: Target) -> None:
    target.apply(update(ORDERS, b"1", b"A"), insert(ORDERS, b"3", b"c"))
    assert indexes(target, "orders") == [(["id"], True)]
    assert target.table("public", "orders") == [("1", "A"), ("2", None), ("3", "c")]


def test_changes_may_be_staged_before_the_key_is_built(new_target: Callable[[int], Target]) -> None:
    target = new_target(0)
    apply_copied(target.sink, [[copied(1, ORDERS, (b"1", b"a"))]])
    receipts = target.write([[insert(ORDERS, b"3", b"c")]])
    assert len(target.stages()) == 1
    target.sink.commit(receipts, STREAM_CREATED)
    assert indexes(target, "orders") == [(["id"], True)]


def test_a_primary_key_and_a_replica_identity_index_are_both_built(target: Target) -> None:
    apply_copied(target.sink, [[copied(2, PEOPLE, (b"1", b"a@x"))]])
    assert indexes(target, "people") == []
    target.sink.finish_copy()
    assert indexes(target, "people") == [(["id"], True), (["email"], False)]


def test_a_successor_builds_what_its_predecessor_did_not(target: Target) -> None:
    apply_copied(target.sink, [[copied(2, PEOPLE, (b"1", b"a@x"))]])
    target.execute("ALTER TABLE public.orders ADD PRIMARY KEY (id)")  # as when it died before it removed the note
    target.sink.close()
    successor = target.new_sink()
    successor.open()
    successor.finish_copy()
    assert indexes(target, "orders") == [(["id"], True)]
    assert len(indexes(target, "people")) == 2
    assert pending(target) == 0


def test_the_key_of_a_table_that_is_gone_is_not_missed(target: Target) -> None:
    target.execute("DROP TABLE public.orders")
    target.sink.finish_copy()
    assert pending(target) == 0


def test_another_worker_leaves_the_key_alone(target: Target) -> None:
    other = target.new_sink("other")
    other.open()
    other.finish_copy()
    assert (indexes(target, "orders"), pending(target)) == ([], 1)


def test_a_key_that_cannot_be_built_stops_the_worker_without_showing_a_value(target: Target) -> None:
    target.execute("INSERT INTO public.orders VALUES (7771, 'x'), (7771, 'y')")
    with pytest.raises(TerminalError, match=r"refused building the key of table 'public\.orders'.*unique violation") as raised:
        target.apply(insert(ORDERS, b"3", b"c"))
    assert "7771" not in str(raised.value)
    target.execute("DELETE FROM public.orders WHERE note = 'y'")
    target.sink.finish_copy()
    assert indexes(target, "orders") == [(["id"], True)]


def test_a_table_that_is_copied_anew_keeps_the_key_it_has(target: Target) -> None:
    target.sink.finish_copy()
    apply_copied(target.sink, [[restart(2, ORDERS)]])
    apply_copied(target.sink, [[copied(3, ORDERS, (b"1", b"new"), snapshot="second")]])
    assert (indexes(target, "orders"), target.table("public", "orders")) == ([(["id"], True)], [("1", "new")])


def test_a_table_made_for_changes_has_its_key_at_once(target: Target) -> None:
    target.apply(insert(PEOPLE, b"1", b"a@x"))
    assert len(indexes(target, "people")) == 2
