"""Pieces that have no staging table of their own wait as text, and are applied like those of a receipt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.testing.changes_builder import delete, insert, message, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.postgres.own.parked_text import CHUNK_BYTES
from tests.worker.sinks.postgres.conftest import Target

ORDERS = table("public.orders", "id bigint", "note text")
EVENTS = table("public.events", "note text", key=())


@pytest.fixture
def parking(new_target: Callable[..., Target]) -> Target:
    return new_target(0, 0)


def test_parked_rows_are_applied_and_the_text_is_gone_after_it(parking: Target) -> None:
    long = b"x" * (2 * CHUNK_BYTES + 7)
    parking.apply_partitions(
        [[insert(ORDERS, b"1", b"a"), insert(ORDERS, b"2", long), insert(EVENTS, b"e")]],
        [[update(ORDERS, b"1", b"b"), insert(ORDERS, b"3", b"\xc3\xa9\\")]],
        [[delete(ORDERS, b"3", None)]],
    )
    assert parking.table("public", "orders") == [("1", "b"), ("2", long.decode())]
    assert parking.table("public", "events") == [("e",)]
    assert parking.stages() == []


def test_a_batch_has_its_largest_pieces_in_stages_and_parks_the_others(new_target: Callable[..., Target]) -> None:
    target = new_target(0, 2)
    tables = [table(f"public.t{number}", "id bigint", "note text") for number in range(4)]
    receipts = target.write([[insert(each, b"1", b"x" * (1 + i)) for i, each in enumerate(tables)]])
    assert sorted(name.rpartition("_")[2] for name in target.stages()) == ["1", "2", "parked"]
    target.sink.commit(receipts, STREAM_CREATED)
    assert [target.table("public", each.name) for each in tables] == [[("1", "x" * (1 + i))] for i in range(4)]
    assert target.stages() == []


def test_a_row_that_the_target_refuses_is_found_in_parked_text(parking: Target) -> None:
    parking.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text CHECK (note <> 'bad'))")
    with pytest.raises(RejectedChanges) as caught:
        parking.apply(insert(ORDERS, b"1", b"good"), insert(ORDERS, b"2", b"bad"), insert(ORDERS, b"3", b"good"))
    assert [rejection.position.ordinal for rejection in caught.value.rejections] == [2]


def test_what_was_parked_ahead_stays_when_the_batch_before_it_is_applied(parking: Target) -> None:
    first, second = (parking.write([[insert(ORDERS, number, b"a")]]) for number in (b"1", b"2"))
    for receipts in (first, second):
        parking.sink.commit(receipts, STREAM_CREATED)
    assert parking.table("public", "orders") == [("1", "a"), ("2", "a")]
    assert parking.stages() == []


@pytest.mark.parametrize("statement", ["TRUNCATE TABLE {}", "DROP TABLE {}"])
def test_parked_text_that_is_gone_is_asked_for_again(parking: Target, statement: str) -> None:
    receipts = parking.write([[insert(ORDERS, b"1", b"a")]])
    parking.execute(statement.format(f"pgsluice.{parking.stages()[0]}"))
    with pytest.raises(TransientError, match="staged again"):
        parking.sink.commit(receipts, STREAM_CREATED)
    parking.sink.commit(write(parking.sink, [[message(1, insert(ORDERS, b"1", b"a"))]]), STREAM_CREATED)
    assert parking.table("public", "orders") == [("1", "a")]


def test_the_next_start_removes_parked_text_that_nobody_will_merge(parking: Target) -> None:
    parking.write([[insert(ORDERS, b"1", b"a")]])
    parking.new_sink().open()
    assert parking.stages() == []
