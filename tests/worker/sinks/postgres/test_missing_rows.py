"""What becomes of an update or delete that meets no row at the target, as ``on-missing-row`` says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.testing.changes_builder import Change, delete, insert, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.postgres.own.known_tables import MOST_POSITIONS
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from tests.worker.sinks.postgres.conftest import EVERY_WAY, Target

ORDERS = table("public.orders", "id bigint", "note text", "big text")
EVENTS = table("public.events", "kind text", key=(), identity=ReplicaIdentity.FULL)
GONE, HELD = b"secret", b"1"


def sink_of(target: Target, on_missing_row: str, name: str = "postgres") -> PostgresSink:
    sink = target.new_sink(name, on_missing_row=on_missing_row)
    sink.open()
    return sink


def commit(sink: PostgresSink, batch: Sequence[MessageChanges]) -> int:
    """How often it was written."""
    for written in range(1, 5):
        try:
            sink.commit(write(sink, [batch]), STREAM_CREATED)
        except WriteAgain:
            continue
        return written
    raise AssertionError("written again and again")


def rejected(sink: PostgresSink, batch: Sequence[MessageChanges]) -> list[tuple[Position, str]]:
    with pytest.raises(RejectedChanges) as refused:
        commit(sink, batch)
    return [(rejection.position, rejection.reason) for rejection in refused.value.rejections]


def position(batch: Sequence[MessageChanges], ordinal: int) -> Position:
    return Position(batch[0].transactions[0].commit_lsn, ordinal)  # type: ignore[arg-type]


def missing_and_not() -> list[Change]:
    """The third, fourth and sixth meet no row; the rows of the others are there, or came and went."""
    return [
        insert(ORDERS, HELD, b"a", b"b"),
        update(ORDERS, HELD, b"c", UNCHANGED),
        update(ORDERS, b"8", GONE, UNCHANGED),
        delete(ORDERS, b"7", None, None),
        insert(ORDERS, b"6", b"a", b"b"),
        update(ORDERS, b"10", GONE, UNCHANGED, old=(b"9", None, None)),
        delete(ORDERS, b"6", None, None),
    ]


@EVERY_WAY
def test_each_is_counted_by_kind_with_its_position_and_the_batch_is_written_once_more_for_the_first_alone(
    target: Target,
) -> None:
    sink = sink_of(target, "count")
    first, second = target.messages(missing_and_not()), target.messages([delete(ORDERS, b"7", None, None)])
    assert (commit(sink, first), commit(sink, second)) == (2, 1)
    [missed] = sink.missed()
    assert (missed.changes, missed.updates, missed.deletes) == (4, 2, 2)
    assert missed.positions == tuple(position(first, ordinal) for ordinal in (3, 4, 6))
    assert target.table("public", "orders") == [("1", "c", "b")]


def test_no_more_positions_are_kept_than_tell_what_is_wrong(target: Target) -> None:
    sink = sink_of(target, "count")
    batch = target.messages([delete(ORDERS, b"%d" % n, None, None) for n in range(3 * MOST_POSITIONS)])
    commit(sink, batch)
    [missed] = sink.missed()
    assert missed.deletes == 3 * MOST_POSITIONS
    assert missed.positions == tuple(position(batch, ordinal) for ordinal in range(1, MOST_POSITIONS + 1))


def test_positions_of_later_batches_follow_those_that_are_known(target: Target) -> None:
    sink = sink_of(target, "count")
    first = target.messages([delete(ORDERS, b"7", None, None)])
    second = target.messages([delete(ORDERS, b"8", None, None), delete(EVENTS, b"a")])
    assert (commit(sink, first), commit(sink, second)) == (2, 2)
    positions = {each.place[1]: each.positions for each in sink.missed()}
    assert positions == {"events": (position(second, 2),), "orders": (position(first, 1), position(second, 1))}


@EVERY_WAY
def test_each_becomes_a_dead_letter_that_names_its_position(target: Target) -> None:
    sink = sink_of(target, "dead-letter")
    batch = target.messages(missing_and_not())
    reasons = rejected(sink, batch)
    assert sorted(reasons) == [
        (position(batch, 3), "the update met no row at the target"),
        (position(batch, 4), "the delete met no row at the target"),
        (position(batch, 6), "the update met no row at the target"),
    ]
    assert sink.missed() == []
    assert not any(GONE.decode() in reason for _, reason in reasons)


def test_of_equal_rows_without_a_key_those_are_named_that_were_too_many(target: Target) -> None:
    sink = sink_of(target, "dead-letter")
    batch = target.messages([insert(EVENTS, b"a"), delete(EVENTS, b"a"), delete(EVENTS, b"a"), update(EVENTS, b"c", old=(b"b",))])
    assert sorted(rejected(sink, batch)) == [
        (position(batch, 3), "the delete met no row at the target"),
        (position(batch, 4), "the update met no row at the target"),
    ]


def test_the_worker_stops_with_table_position_and_cure(target: Target) -> None:
    sink = sink_of(target, "stop")
    batch = target.messages(missing_and_not())
    with pytest.raises(TerminalError) as stopped:
        commit(sink, batch)
    at = position(batch, 3)
    assert f"the update of table 'public.orders' at {at} met no row at the target, nor did 2 other changes" in str(stopped.value)
    assert f"'pgsluice messages --from {at} --limit 1'" in str(stopped.value)
    assert "'pgsluice tables resync public.orders'" in str(stopped.value)
    assert GONE.decode() not in str(stopped.value)
    assert target.rows("SELECT to_regclass('public.orders') IS NULL OR NOT EXISTS (SELECT FROM public.orders)") == [(True,)]


def test_a_replay_refuses_its_letter_again_where_the_worker_would_stop(target: Target) -> None:
    sink = sink_of(target, "stop", name="postgres.replay")
    batch = target.messages([delete(ORDERS, b"7", None, None)])
    assert rejected(sink, batch) == [(position(batch, 1), "the delete met no row at the target")]


@pytest.mark.parametrize("on_missing_row", ["dead-letter", "stop"])
def test_where_a_filter_or_a_route_may_be_the_reason_it_is_counted(target: Target, on_missing_row: str) -> None:
    sink = sink_of(target, on_missing_row)
    asked: list[tuple[int, tuple[str, str]]] = []

    def may_leave_out(oid: int, source: tuple[str, str]) -> bool:
        asked.append((oid, source))
        return True

    sink.expect_missing(may_leave_out)
    assert commit(sink, target.messages([delete(ORDERS, b"7", None, None)])) == 1
    assert asked == [(ORDERS.oid, ("public", "orders"))]
    assert [each.deletes for each in sink.missed()] == [1]


def test_what_is_right_is_written_once(target: Target) -> None:
    sink = sink_of(target, "stop")
    assert commit(sink, target.messages([insert(ORDERS, HELD, b"a", b"b"), insert(EVENTS, b"a")])) == 1
    right = [update(ORDERS, HELD, b"c", UNCHANGED), delete(ORDERS, HELD, None, None), delete(EVENTS, b"a")]
    assert commit(sink, target.messages(right)) == 1
    assert sink.missed() == []
