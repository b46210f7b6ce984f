"""Determines the end of a batch, and cuts it into partitions. Pure, except for the marks it asks for.

A partition only names messages (``SequenceRange``): the task that writes them fetches them, so that no payload goes
through the JVM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgsluice.worker.batches.change_reader import Mark
from pgsluice.worker.sinks.sink import Lane

SMALL_BATCH_BYTES = 512 * 1024  # below this a batch is one task: starting a second costs more than it gains
PARTITION_BYTES = 16 * 1024 * 1024  # bounds what one task holds decoded
STREAMED_PARTITION_BYTES = 4 * 1024 * 1024
"""Partition size if one partition is delivered while the next is written: nothing runs in parallel with the first and
the last."""
COPIED_MESSAGE_BYTES = 256 * 1024

DEFINING_BYTES = 4 * 1024 * 1024
DEFINING_MESSAGES = 500
"""Limits of a batch with definitions, unless its first transaction is larger: the target applies it in one transaction, which
locks the tables that it alters, and applies no other batch meanwhile."""

MarkAt = Callable[[int], Mark]
"""The mark of a message that is known to exist."""


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Messages of the stream that ``lane`` reads; ``partitions`` is how many ranges the batch has. ``defines``: there are
    definitions in the batch."""

    lane: Lane
    first_sequence: int
    last_sequence: int
    partitions: int
    defines: bool = False


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """A batch holds no more than this, unless one source transaction is larger."""

    messages: int
    bytes: int


def plan_end(
    start: int, bytes_before: int, last: Mark, limit: BatchLimit, mark_at: MarkAt, *, defines_alone: bool = False
) -> int:
    """Returns the last sequence of the batch that begins after ``start``; ``start`` itself when no transaction is
    complete yet.

    Transactions with definitions are taken together, with the ones before and between them, as far as that is little;
    otherwise the part before the first of them is a separate batch. With ``defines_alone`` each is a batch.
    ``bytes_before`` are the stream's bytes before it, ``last`` is the newest message. Marks grow with the sequence, so
    all searches halve the range.
    """
    if last.settled <= start:
        return start
    end = _end_within(start, bytes_before, last, limit, mark_at)
    if mark_at(end).ddl <= start:
        return end
    first = _first_that(lambda mark: mark.ddl > start, start + 1, end, mark_at)
    before = max(start, mark_at(first - 1).settled) if first - 1 > start else start
    alone = _first_that(lambda mark: mark.settled > before, first, end, mark_at)
    apart = before if before > start else alone
    if defines_alone:
        return apart
    few = BatchLimit(min(limit.messages, DEFINING_MESSAGES), min(limit.bytes, DEFINING_BYTES))
    together = _end_within(start, bytes_before, mark_at(end), few, mark_at)
    return together if together >= alone else apart


def _end_within(start: int, bytes_before: int, last: Mark, limit: BatchLimit, mark_at: MarkAt) -> int:
    """Returns the last sequence that the limit allows; ``last`` settles something."""

    def fits(mark: Mark) -> bool:
        return mark.sequence - start <= limit.messages and mark.bytes_through - bytes_before <= limit.bytes

    if fits(last):
        return last.settled
    candidate = _last_that(fits, start + 1, min(last.sequence, start + limit.messages), mark_at)
    if candidate is not None and candidate.settled > start:
        return candidate.settled
    # One transaction is larger than the limit: the batch is that transaction, up to the first message that settles.
    return _first_that(lambda mark: mark.settled > start, start + 1, last.settled, mark_at)


def _first_that(holds: Callable[[Mark], bool], low: int, high: int, mark_at: MarkAt) -> int:
    """Returns the first sequence in the range whose mark satisfies ``holds``; the mark of ``high`` does."""
    while low < high:
        middle = (low + high) // 2
        if holds(mark_at(middle)):
            high = middle
        else:
            low = middle + 1
    return low


def _last_that(fits: Callable[[Mark], bool], low: int, high: int, mark_at: MarkAt) -> Mark | None:
    """Returns the last mark in the range that fits; None when not even the first does."""
    found: Mark | None = None
    while low <= high:
        middle = (low + high) // 2
        mark = mark_at(middle)
        if fits(mark):
            found, low = mark, middle + 1
        else:
            high = middle - 1
    return found


def plan_copied_end(start: int, last_sequence: int, limit: BatchLimit, first_fence: Callable[[int, int], int | None]) -> int:
    """Returns the last sequence of a batch of the snapshot stream that begins after ``start``.

    A message that restarts a table is alone in its batch: what it takes back must be gone before rows of the table come
    again. So is one that begins a pipeline's run, whose rows may be newer versions of those before. Messages are
    counted as COPIED_MESSAGE_BYTES each, their usual size. ``first_fence(first, last)`` is the sequence of the first
    such message in a range.
    """
    end = min(last_sequence, start + min(limit.messages, max(1, limit.bytes // COPIED_MESSAGE_BYTES)))
    fence = first_fence(start + 1, end)
    return end if fence is None else max(fence - 1, start + 1)


def definitions_within(start: int, end: int, mark_at: MarkAt) -> list[tuple[int, int]]:
    """Returns the first and the last sequence of each message after ``start`` up to ``end`` that holds a definition, in
    order."""
    found: list[tuple[int, int]] = []
    last = mark_at(end).ddl
    while last > start:
        first = last - mark_at(last).chunks + 1
        found.append((first, last))
        last = mark_at(first - 1).ddl if first - 1 > start else 0
    return found[::-1]


def tile_around(
    definitions: Sequence[tuple[int, int]],
    start: int,
    end: int,
    bytes_through: Callable[[int], int],
    parallelism: int,
    most_bytes: int = PARTITION_BYTES,
) -> list[tuple[int, int]]:
    """Tiles changes with ``definitions``. Adjacent definitions share a separate partition. ``bytes_through(sequence)``
    are the stream's bytes up to there."""
    tiles: list[tuple[int, int]] = []
    for first, last in (*_adjoined(definitions), (end + 1, end + 1)):
        before = first - 1
        if before > start:
            tiles += tile(start, before, bytes_through(before) - bytes_through(start), parallelism, most_bytes)
        if first <= end:
            tiles.append((first, last))
        start = last
    return tiles


def _adjoined(definitions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, last in definitions:
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def tile_whole(
    start: int, end: int, total_bytes: int, parallelism: int, settled: Callable[[int], int], most_bytes: int = PARTITION_BYTES
) -> list[tuple[int, int]]:
    """Tiles changes, in partitions that hold whole transactions, however large. ``settled(sequence)`` is the last one
    up to there at which no transaction is open; ``end`` is such a one."""
    tiles: list[tuple[int, int]] = []
    first = start + 1
    for _, high in tile(start, end, total_bytes, parallelism, most_bytes):
        last = end if high == end else settled(high)
        if last >= first:
            tiles.append((first, last))
            first = last + 1
    return tiles


def tile(start: int, end: int, total_bytes: int, parallelism: int, most_bytes: int | None) -> list[tuple[int, int]]:
    """Returns partitions of the messages after ``start`` up to ``end``: first and last sequence of each, in order,
    without gaps.

    As many as there are cores, one when the batch is small; more when that keeps each within ``most_bytes``. None for
    copied rows that are written as they are fetched, not held.
    """
    messages = end - start
    if messages == 0:
        return []
    wanted = 1 if total_bytes < SMALL_BATCH_BYTES else parallelism
    if most_bytes is not None:
        wanted = max(wanted, -(-total_bytes // most_bytes))
    count = min(wanted, messages)
    borders = [start + messages * i // count for i in range(count + 1)]
    return [(low + 1, high) for low, high in itertools.pairwise(borders)]
