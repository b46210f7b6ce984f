"""Where batches end and how they are tiled, over streams drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.worker.batches.change_reader import Mark
from pgsluice.worker.batches.planning import (
    COPIED_MESSAGE_BYTES,
    PARTITION_BYTES,
    SMALL_BATCH_BYTES,
    BatchLimit,
    plan_copied_end,
    plan_end,
    tile,
)


def stream(sizes_and_ends: list[tuple[int, bool]]) -> dict[int, Mark]:
    """Marks of messages 1, 2, …: each of a size, and with or without an open transaction at its end."""
    marks: dict[int, Mark] = {}
    settled = total = 0
    for sequence, (size, ends_settled) in enumerate(sizes_and_ends, start=1):
        settled = sequence if ends_settled else settled
        marks[sequence] = Mark(sequence, settled, total, total + size)
        total += size
    return marks


streams = st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=60).map(stream)
limits = st.builds(BatchLimit, messages=st.integers(1, 30), bytes=st.integers(1, 1500))


@given(streams, limits)
def test_batches_end_only_where_no_transaction_is_open_and_together_cover_every_settled_message(
    marks: dict[int, Mark], limit: BatchLimit
) -> None:
    last = marks[len(marks)]
    position = 0
    while (
        end := plan_end(
            position, marks[position + 1].bytes_before if position < len(marks) else 0, last, limit, marks.__getitem__
        )
    ) != position:
        assert marks[end].settled == end
        position = end
    assert position == last.settled


@given(streams, limits)
def test_a_batch_exceeds_the_limit_only_when_it_is_a_single_transaction(marks: dict[int, Mark], limit: BatchLimit) -> None:
    last = marks[len(marks)]
    position = 0
    while (
        end := plan_end(
            position, marks[position + 1].bytes_before if position < len(marks) else 0, last, limit, marks.__getitem__
        )
    ) != position:
        settled_inside = [s for s in range(position + 1, end) if marks[s].settled == s]
        size = marks[end].bytes_through - marks[position + 1].bytes_before
        assert (end - position <= limit.messages and size <= limit.bytes) or not settled_inside
        position = end


@given(streams, limits)
def test_a_batch_is_as_large_as_the_limit_allows(marks: dict[int, Mark], limit: BatchLimit) -> None:
    last = marks[len(marks)]
    end = plan_end(0, 0, last, limit, marks.__getitem__)
    for later in range(end + 1, len(marks) + 1):
        if marks[later].settled == later:
            assert later > limit.messages or marks[later].bytes_through > limit.bytes


def restarts_at(restarts: set[int]) -> Callable[[int, int], int | None]:
    return lambda first, last: min((restart for restart in restarts if first <= restart <= last), default=None)


@given(st.integers(1, 60), st.sets(st.integers(1, 60)), limits)
def test_batches_of_copied_rows_cover_the_stream_and_a_restart_is_alone_in_its_batch(
    last_sequence: int, restarts: set[int], limit: BatchLimit
) -> None:
    position = 0
    while position < last_sequence:
        end = plan_copied_end(position, last_sequence, limit, restarts_at(restarts))
        assert position < end <= last_sequence
        assert end - position == 1 or not restarts & set(range(position + 1, end + 1))
        assert end - position <= limit.messages
        position = end


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        (BatchLimit(messages=100, bytes=10 * COPIED_MESSAGE_BYTES), 15),
        (BatchLimit(messages=3, bytes=10 * COPIED_MESSAGE_BYTES), 8),
        (BatchLimit(messages=100, bytes=1), 6),
        (BatchLimit(messages=100, bytes=100 * COPIED_MESSAGE_BYTES), 20),
    ],
)
def test_a_batch_of_copied_rows_is_as_large_as_the_limit_allows(limit: BatchLimit, end: int) -> None:
    assert plan_copied_end(5, 20, limit, restarts_at(set())) == end


@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 4 * PARTITION_BYTES), st.integers(1, 16), st.booleans())
def test_partitions_tile_the_range_in_order_without_gap_or_overlap(
    start: int, count: int, size: int, parallelism: int, copied: bool
) -> None:
    tiles = tile(start, start + count, size, parallelism, copied=copied)
    assert [sequence for first, last in tiles for sequence in range(first, last + 1)] == list(range(start + 1, start + count + 1))
    assert all(first <= last for first, last in tiles)


def test_a_small_batch_is_one_partition_and_a_large_one_keeps_every_core_busy() -> None:
    assert len(tile(0, 100, SMALL_BATCH_BYTES - 1, 8, copied=False)) == 1
    assert len(tile(0, 100, SMALL_BATCH_BYTES, 8, copied=False)) == 8
    assert len(tile(0, 100, 20 * PARTITION_BYTES, 8, copied=False)) == 20


def test_copied_rows_are_not_held_so_a_partition_of_them_may_be_large() -> None:
    assert len(tile(0, 100, SMALL_BATCH_BYTES - 1, 8, copied=True)) == 1
    assert len(tile(0, 100, 20 * PARTITION_BYTES, 8, copied=True)) == 8
