"""Where batches end and how they are tiled, over streams drawn at random."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgsluice.worker.batches.change_reader import Mark
from pgsluice.worker.batches.planning import (
    COPIED_MESSAGE_BYTES,
    DEFINING_BYTES,
    DEFINING_MESSAGES,
    PARTITION_BYTES,
    SMALL_BATCH_BYTES,
    BatchLimit,
    definitions_within,
    plan_copied_end,
    plan_end,
    tile,
    tile_around,
    tile_whole,
)


def stream(messages: list[tuple[int, bool, bool]]) -> dict[int, Mark]:
    """Marks of messages 1, 2, …: each of a size, with or without an open transaction at its end, with or without a definition. A
    transaction with a definition ends a message, as the assembler has it."""
    marks: dict[int, Mark] = {}
    settled = total = ddl = 0
    for sequence, (size, ends_settled, defines) in enumerate(messages, start=1):
        settled = sequence if ends_settled else settled
        ddl = sequence if defines else ddl
        marks[sequence] = Mark(sequence, settled, total, total + size, ddl=ddl)
        total += size
    return marks


rows = st.tuples(st.integers(1, 100), st.booleans(), st.just(False))
definition = st.tuples(st.integers(1, 100), st.booleans(), st.just(True))
streams = st.lists(st.one_of(rows, rows, rows, definition), min_size=1, max_size=60).map(stream)
plain_streams = st.lists(rows, min_size=1, max_size=60).map(stream)
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


@example(stream([(60, True, False)] * 4), BatchLimit(messages=9, bytes=100))
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


@given(plain_streams, limits)
def test_a_batch_is_as_large_as_the_limit_allows(marks: dict[int, Mark], limit: BatchLimit) -> None:
    last = marks[len(marks)]
    end = plan_end(0, 0, last, limit, marks.__getitem__)
    for later in range(end + 1, len(marks) + 1):
        if marks[later].settled == later:
            assert later > limit.messages or marks[later].bytes_through > limit.bytes


@given(streams, limits, st.booleans())
def test_definitions_are_together_with_other_transactions_only_where_that_is_little_and_each_may_be_alone(
    marks: dict[int, Mark], limit: BatchLimit, alone: bool
) -> None:
    last, position = marks[len(marks)], 0
    while last.settled > position:
        bytes_before = marks[position + 1].bytes_before
        end = plan_end(position, bytes_before, last, limit, marks.__getitem__, defines_alone=alone)
        defined = [(sequence, sequence) for sequence in range(position + 1, end + 1) if marks[sequence].ddl == sequence]
        assert definitions_within(position, end, marks.__getitem__) == defined
        inside = [sequence for sequence in range(position + 1, end) if marks[sequence].settled == sequence]
        size = marks[end].bytes_through - bytes_before
        is_little = end - position <= min(limit.messages, DEFINING_MESSAGES) and size <= min(limit.bytes, DEFINING_BYTES)
        assert not defined or not inside or (is_little and not alone)
        position = end


def test_what_is_before_a_definition_and_too_much_to_be_together_with_it_is_a_batch() -> None:
    marks = stream([(DEFINING_BYTES // 3, True, False)] * 4 + [(10, True, True)])
    assert plan_end(0, 0, marks[5], BatchLimit(10_000, 1 << 40), marks.__getitem__) == 4
    assert plan_end(4, marks[4].bytes_through, marks[5], BatchLimit(10_000, 1 << 40), marks.__getitem__) == 5


def test_small_transactions_with_definitions_are_taken_together() -> None:
    marks = stream([(10, True, True)] * 1200)
    assert plan_end(0, 0, marks[1200], BatchLimit(10_000, 100_000), marks.__getitem__) == DEFINING_MESSAGES
    marks = stream([(DEFINING_BYTES // 3, True, True)] * 5)
    assert plan_end(0, 0, marks[5], BatchLimit(10_000, 1 << 40), marks.__getitem__) == 3


@given(streams, st.integers(1, 4))
def test_definitions_that_adjoin_are_a_partition_and_the_rows_around_them_are_others(
    marks: dict[int, Mark], parallelism: int
) -> None:
    defined = {sequence for sequence, mark in marks.items() if mark.ddl == sequence}
    tiles = tile_around(
        [(sequence, sequence) for sequence in sorted(defined)],
        0,
        len(marks),
        lambda at: marks[at].bytes_through if at else 0,
        parallelism,
    )
    assert [sequence for first, last in tiles for sequence in range(first, last + 1)] == list(marks)
    mixed = [{sequence in defined for sequence in range(first, last + 1)} for first, last in tiles]
    assert all(len(kinds) == 1 for kinds in mixed)
    assert not [pair for pair in itertools.pairwise(mixed) if pair == ({True}, {True})]


def test_a_definition_that_came_in_chunks_is_one_partition() -> None:
    marks = {
        1: Mark(1, 1, 0, 10),
        2: Mark(2, 1, 10, 20, chunks=2),
        3: Mark(3, 3, 20, 30, ddl=3, chunks=2),
        4: Mark(4, 4, 30, 40, ddl=3),
    }
    assert definitions_within(0, 4, marks.__getitem__) == [(2, 3)]
    assert tile_around([(2, 3)], 0, 4, lambda at: 10 * at, 2) == [(1, 1), (2, 3), (4, 4)]
    assert plan_end(0, 0, marks[4], BatchLimit(9, 90), marks.__getitem__) == 4
    assert plan_end(0, 0, marks[4], BatchLimit(9, 90), marks.__getitem__, defines_alone=True) == 1
    assert plan_end(1, 10, marks[4], BatchLimit(9, 90), marks.__getitem__, defines_alone=True) == 3


def restarts_at(restarts: set[int]) -> Callable[[int, int], int | None]:
    return lambda first, last: min((restart for restart in restarts if first <= restart <= last), default=None)


@example(9, {4}, BatchLimit(messages=9, bytes=9 * COPIED_MESSAGE_BYTES))
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
    tiles = tile(start, start + count, size, parallelism, None if copied else PARTITION_BYTES)
    assert [sequence for first, last in tiles for sequence in range(first, last + 1)] == list(range(start + 1, start + count + 1))
    assert all(first <= last for first, last in tiles)


def test_a_small_batch_is_one_partition_and_a_large_one_keeps_every_core_busy() -> None:
    assert len(tile(0, 100, SMALL_BATCH_BYTES - 1, 8, PARTITION_BYTES)) == 1
    assert len(tile(0, 100, SMALL_BATCH_BYTES, 8, PARTITION_BYTES)) == 8
    assert len(tile(0, 100, 20 * PARTITION_BYTES, 8, PARTITION_BYTES)) == 20


def test_copied_rows_are_not_held_so_a_partition_of_them_may_be_large() -> None:
    assert len(tile(0, 100, SMALL_BATCH_BYTES - 1, 8, None)) == 1
    assert len(tile(0, 100, 20 * PARTITION_BYTES, 8, None)) == 8


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 8))
def test_partitions_of_whole_transactions_end_where_none_is_open(ends: list[bool], parallelism: int) -> None:
    """``ends`` says of each message whether a transaction is open behind it; behind the last one none is."""
    ends[-1] = True
    last = len(ends)

    def settled(sequence: int) -> int:
        return max((n for n in range(1, sequence + 1) if ends[n - 1]), default=0)

    tiles = tile_whole(0, last, 1 << 40, parallelism, settled)
    assert [number for low, high in tiles for number in range(low, high + 1)] == list(range(1, last + 1))
    assert all(ends[high - 1] for _, high in tiles)
