"""What is taken next: largest first, each table its share, small ranges together."""

from __future__ import annotations

from pgsluice.replicator.snapshot.orders import RangeOrder
from pgsluice.replicator.snapshot.schedule import MOST_IN_A_TASK, Schedule
from tests.replicator.snapshot.conftest import page_range

RANGE = 1 << 20


def ranges(oid: int, *sizes: int) -> list[RangeOrder]:
    return [RangeOrder(page_range(oid, number, size), 1, b"") for number, size in enumerate(sizes, start=1)]


def oids(taken: list[RangeOrder]) -> list[int]:
    return [order.pages.table_oid for order in taken]


def test_the_largest_table_comes_first_and_has_no_more_than_its_share() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE), ranges(2, RANGE, RANGE, RANGE, RANGE)], workers_per_table=2, range_bytes=RANGE)
    assert [oids(schedule.take()) for _ in range(4)] == [[2], [2], [1], [1]]
    assert schedule.take() == []
    assert not schedule.is_finished


def test_a_released_place_is_taken_by_the_same_table() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE)], workers_per_table=1, range_bytes=RANGE)
    first = schedule.take()
    assert schedule.take() == []
    schedule.release(first)
    assert [order.pages.number for order in schedule.take()] == [2]


def test_small_tables_travel_together_up_to_a_limit() -> None:
    schedule = Schedule([ranges(oid, 8192) for oid in range(1, 41)], workers_per_table=1, range_bytes=64 * RANGE)
    assert [len(schedule.take()) for _ in range(3)] == [MOST_IN_A_TASK, 40 - MOST_IN_A_TASK, 0]


def test_small_ranges_of_one_table_travel_together() -> None:
    schedule = Schedule([ranges(1, *[8192] * 5)], workers_per_table=1, range_bytes=64 * RANGE)
    assert len(schedule.take()) == 5


def test_a_large_range_travels_alone() -> None:
    schedule = Schedule([ranges(1, RANGE, 10), ranges(2, 10)], workers_per_table=4, range_bytes=RANGE)
    assert oids(schedule.take()) == [1]
    assert oids(schedule.take()) == [1, 2]


def test_a_repeated_range_comes_after_the_others_of_its_table() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE)], workers_per_table=1, range_bytes=RANGE)
    first = schedule.take()
    schedule.release(first)
    schedule.repeat(first[0])
    numbers = []
    while taken := schedule.take():
        numbers += [order.pages.number for order in taken]
        schedule.release(taken)
    assert numbers == [2, 1]
    assert schedule.is_finished


def test_of_a_dropped_table_nothing_more_is_taken() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE), ranges(2, RANGE)], workers_per_table=1, range_bytes=RANGE)
    taken = schedule.take()
    schedule.drop(1)
    schedule.release(taken)
    assert oids(schedule.take()) == [2]
