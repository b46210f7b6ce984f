"""Plans the next batch: its lane, and its messages.

A batch moves one of three positions on (``Lane``). Batches of changes end only where no source transaction is open; a
transaction larger than the batch limit is a separate batch.

A table whose copy is not applied yet, or which a user has paused, is left out of the changes of all others, which
continue; it is one of a cohort then, whose changes are read again from where they were first left out, once the copies
of the whole cohort are applied and none of it is paused. Where the cohort has read what all others have, it joins them.
A worker that has applied no changes yet, and a sink that keeps no such place, waits for every copy instead.

Which tables are copied is looked up after the end of the change stream was: then every message up to that end is older
than any snapshot that is taken later, and its changes belong to that copy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from nats.aio.client import Client
from nats.aio.msg import Msg

from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.change_reader import ChangeReader, Mark
from pgsluice.worker.batches.planning import (
    COPIED_MESSAGE_BYTES,
    DEFINING_BYTES,
    DEFINING_MESSAGES,
    PARTITION_BYTES,
    STREAMED_PARTITION_BYTES,
    BatchLimit,
    SequenceRange,
    definitions_within,
    plan_copied_end,
    plan_end,
    tile,
    tile_around,
    tile_whole,
)
from pgsluice.worker.batches.snapshot_reader import CopyProgress, SnapshotReader
from pgsluice.worker.sinks.sink import Applied, Lane

FIRST_PAUSE_S = 0.004
LONGEST_PAUSE_S = 1.0
LONGEST_PAUSE_WHERE_IT_RINGS_S = 5.0
PAUSE_GROWTH = 1.5
GATHER_FROM_BYTES = 1024 * 1024
GATHER_BYTES = 16 * 1024 * 1024  # beyond that a larger batch costs hardly less for each change
GATHER_RATE = 10 * 1024 * 1024  # bytes a second
GATHER_S = 0.4
GATHER_PAUSE_S = 0.05
SHARED_BYTES = 8 * 1024 * 1024
SHARED_MESSAGES = 2_000
"""Limit of a batch while lanes take turns, about half a second of work each: the wait of the other lanes."""

_LANES_AFTER = {
    Lane.COPIED: (Lane.CHANGES, Lane.CATCH_UP, Lane.COPIED),
    Lane.CHANGES: (Lane.CATCH_UP, Lane.COPIED, Lane.CHANGES),
    Lane.CATCH_UP: (Lane.COPIED, Lane.CHANGES, Lane.CATCH_UP),
}


@dataclass(frozen=True, slots=True)
class LanePlaces:
    """A place between two messages of each stream: everything up to these sequences comes before it; of the tables in
    ``cohort`` only the changes up to ``caught_up``. ``borders`` are those of ``CatchUp``, as they were applied."""

    snapshot: int
    changes: int
    caught_up: int = 0
    cohort: frozenset[int] = frozenset()
    borders: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, applied: Applied) -> LanePlaces:
        place, catch_up = cls(applied.snapshot_sequence, applied.sequence), applied.catch_up
        if catch_up is None:
            return place
        return replace(place, caught_up=catch_up.sequence, cohort=catch_up.tables, borders=catch_up.borders)

    def after_changes(self, end: int, left_out: frozenset[int]) -> LanePlaces:
        """Returns the place after all other tables have moved to ``end``."""
        if not left_out:
            return LanePlaces(self.snapshot, end)
        return LanePlaces(self.snapshot, end, self.caught_up if self.cohort else self.changes, left_out, self.borders)

    def after_catch_up(self, end: int) -> LanePlaces:
        """Returns the place after the cohort has moved to ``end``."""
        return LanePlaces(self.snapshot, self.changes) if end >= self.changes else replace(self, caught_up=end)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """``ranges`` tile the messages from ``start`` to ``end``, of one lane. ``cohort`` are the tables whose changes are left out,
    or which catch up. ``is_fence``: the next batch must not be begun before this one is applied, and this one not before the one
    before it is. ``definitions`` are the first and the last sequence of each message in it that holds a definition."""

    start: LanePlaces
    end: LanePlaces
    ranges: tuple[SequenceRange, ...]
    is_fence: bool = False
    cohort: frozenset[int] = frozenset()
    definitions: tuple[tuple[int, int], ...] = ()
    planned_s: float = field(default=0.0, compare=False)
    """Seconds that planning took."""

    @property
    def lane(self) -> Lane:
        return self.ranges[0].lane


class WakeUp:
    """A wake-up for a planner that waits for new messages.

    The replicator rings (``names.bell_subject``) after what it published was acknowledged. A ring has no content, so
    other publishers there can do no harm by it. It may get lost, and earlier versions never ring: so a wait also ends
    after a while, and each is longer than the one before until something comes. Their maximum depends on whether the
    last news came by a ring.
    """

    def __init__(self) -> None:
        self._rung = threading.Event()
        self.pause_s = FIRST_PAUSE_S
        """Longest next wait, in seconds."""
        self.longest_pause_s = LONGEST_PAUSE_S
        """Limit of its growth."""
        self._was_quiet = False
        """True if the last wait timed out, and nothing was found since."""

    async def listen(self, client: Client, names: GroupNames) -> None:
        """Listens until ``client`` is closed. Call it on the client's event loop; the other methods are for any thread."""

        async def ring(_: Msg) -> None:
            self.ring()

        await client.subscribe(names.bell_subject, cb=ring)

    def ring(self) -> None:
        self.longest_pause_s = LONGEST_PAUSE_WHERE_IT_RINGS_S
        self.wake()

    def wake(self) -> None:
        """Ends a wait as a ring does."""
        self.pause_s = FIRST_PAUSE_S
        self._rung.set()

    def note_news(self) -> None:
        """Notes that a check found something."""
        self.pause_s = FIRST_PAUSE_S  # without rings, more can still come soon
        if self._was_quiet:
            self.longest_pause_s = LONGEST_PAUSE_S
        self._was_quiet = False

    def note_look(self) -> None:
        """Clears it; call it before a check, so that rings from now on end the next wait."""
        self._rung.clear()

    def wait(self, deadline: float) -> bool:
        """Waits until another check is worthwhile; returns False at the ``deadline`` of the monotonic clock."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        self._was_quiet = not self._rung.wait(min(self.pause_s, left_s))
        if self._was_quiet:
            self.pause_s = min(self.pause_s * PAUSE_GROWTH, self.longest_pause_s)
        return True


@dataclass(frozen=True, slots=True)
class Copies:
    """The planner's questions about the tables' copies: ``unready`` which are not whole, or have rows after that
    message of the snapshot stream (raises TransientError); ``is_finished`` whether the sink has finished all up to
    there. Without ``two_lanes`` all tables wait for a copy. ``paused`` are the tables that users have paused."""

    unready: Callable[[int], frozenset[int]]
    is_finished: Callable[[int], bool]
    two_lanes: bool = True
    paused: Callable[[], frozenset[int]] = frozenset


@dataclass(frozen=True, slots=True)
class _StreamLook:
    """The state found after ``start``: the newest message of changes, the copy, and the tables whose copies are not
    applied or which are paused."""

    start: LanePlaces
    last: Mark | None
    copy: CopyProgress
    unready: frozenset[int]


class BatchPlanner:
    """Blocking calls, each of which raises TransientError when NATS does not answer. ``drain_to`` is the last change
    sequence of a worker that ends there; None for one that runs indefinitely. ``whole_transactions``: no partition ends
    inside one. ``streamed``: partitions are delivered one after the other."""

    def __init__(
        self,
        connection: BrokerConnection,
        wake_up: WakeUp,
        limit: BatchLimit,
        drain_to: int | None,
        copies: Copies,
        *,
        whole_transactions: bool = False,
        streamed: bool = False,
    ) -> None:
        self._whole_transactions = whole_transactions
        self._partition_bytes = STREAMED_PARTITION_BYTES if streamed else PARTITION_BYTES
        self._copied_partition_bytes = STREAMED_PARTITION_BYTES if streamed else None
        self._changes = ChangeReader(connection)
        self._snapshot = SnapshotReader(connection)
        self._wake_up = wake_up
        self._limit = limit
        self._shared_limit = BatchLimit(min(limit.messages, SHARED_MESSAGES), min(limit.bytes, SHARED_BYTES))
        self._drain_to = drain_to
        self._copies = copies
        self._has_begun = False
        """True if there were changes to apply, or nothing to wait for before them: this is no first copy any more."""
        self._marks: dict[int, Mark] = {}
        self._is_ended = False
        self._alone_through = 0
        """The sequence up to which each transaction with definitions is a separate batch."""

    def next(self, start: LanePlaces, parallelism: int, patience_s: float, after: Lane = Lane.COPIED) -> PlannedBatch | None:
        """Returns the batch that begins at ``start``, in partitions for ``parallelism`` tasks at a time; ``after`` is
        the lane of the one before it. None when there is nothing new within ``patience_s``, or nothing that may be
        applied yet."""
        deadline = time.monotonic() + patience_s
        while not self._is_ended:
            self._wake_up.note_look()
            needed = min(start.changes, start.caught_up) if start.cohort else start.changes
            self._marks = {sequence: mark for sequence, mark in self._marks.items() if sequence >= needed}
            began_at = time.monotonic()
            batch = self._batch(start, parallelism, after)
            if batch is not None:
                self._wake_up.note_news()
                return replace(batch, planned_s=time.monotonic() - began_at)
            if not self._wake_up.wait(deadline):
                return None
        return None

    def separate(self, batch: PlannedBatch) -> bool:
        """Plans the transactions of ``batch``, which has definitions and was not applied, one by one from now on. Returns False
        when that makes no difference."""
        last = batch.ranges[-1].last_sequence
        if not batch.definitions or last <= self._alone_through or self._whole_transactions:
            return False
        self._alone_through = last
        return True

    def end(self) -> None:
        """Ends planning: ``next`` no longer checks or waits. Any thread may call."""
        self._is_ended = True
        self._wake_up.wake()

    def wake(self) -> None:
        """Wakes a ``next`` that waits, for one more check. Any thread may call."""
        self._wake_up.wake()

    def _batch(self, start: LanePlaces, parallelism: int, after: Lane) -> PlannedBatch | None:
        last = self._last_mark(start.changes)
        paused = self._copies.paused() if self._copies.two_lanes else frozenset()
        copy = self._snapshot.progress()
        if copy is None:
            self._has_begun = True
            if not paused | start.cohort:
                return self._alone(start, last, parallelism)
            copy = CopyProgress(start.snapshot, is_finished=True)
        is_applied = copy.is_finished and copy.last_sequence <= start.snapshot
        self._has_begun = self._has_begun or is_applied or start.changes > 0
        if not start.cohort and not (self._has_begun and self._copies.two_lanes):
            return self._one_lane(start, last, copy, parallelism)
        unready = paused if is_applied else paused | self._copies.unready(start.snapshot)
        if not unready | start.cohort:
            return self._one_lane(start, last, copy, parallelism)
        return self._in_turn(_StreamLook(start, last, copy, unready), parallelism, after)

    def _one_lane(self, start: LanePlaces, last: Mark | None, copy: CopyProgress, parallelism: int) -> PlannedBatch | None:
        """Plans first what was copied, then the changes."""
        if copy.last_sequence > start.snapshot:
            return self._copied_batch(start, copy.last_sequence, self._limit, parallelism)
        if not copy.is_finished and not (self._has_begun and self._copies.two_lanes):
            return None
        return self._alone(start, last, parallelism)

    def _alone(self, start: LanePlaces, last: Mark | None, parallelism: int) -> PlannedBatch | None:
        """Plans a batch of changes of all tables."""
        if last is None:
            return None
        if self._drain_to is None:
            last = self._gathered(self._bytes_before(start.changes + 1), last)
        return self._changes_batch(start, last, frozenset(), self._limit, parallelism)

    def _in_turn(self, look: _StreamLook, parallelism: int, after: Lane) -> PlannedBatch | None:
        """The lanes take turns, so that none waits long for another. When the cohort can join with one more batch it does: while
        the others move on it might not reach them."""
        start = look.start
        if self._may_catch_up(look) and self._fits(start.caught_up, start.changes):
            return self._catch_up_batch(start, parallelism)
        batches = (self._batch_of(lane, look, parallelism) for lane in _LANES_AFTER[after])
        return next((batch for batch in batches if batch is not None), None)

    def _batch_of(self, lane: Lane, look: _StreamLook, parallelism: int) -> PlannedBatch | None:
        start, is_news = look.start, look.copy.last_sequence > look.start.snapshot
        limit = self._shared_limit if is_news or self._may_catch_up(look) else self._limit
        match lane:
            case Lane.COPIED:
                return self._copied_batch(start, look.copy.last_sequence, limit, parallelism) if is_news else None
            case Lane.CHANGES:
                left_out = start.cohort | look.unready
                return self._changes_batch(start, look.last, left_out, limit, parallelism) if look.last is not None else None
            case Lane.CATCH_UP:
                return self._catch_up_batch(start, parallelism) if self._may_catch_up(look) else None
            case unreachable:
                assert_never(unreachable)

    def _may_catch_up(self, look: _StreamLook) -> bool:
        start = look.start
        is_behind = bool(start.cohort) and start.caught_up < start.changes
        return is_behind and not start.cohort & look.unready and self._copies.is_finished(start.snapshot)

    def _fits(self, start: int, end: int) -> bool:
        """Returns whether the messages between them may be one batch while other lanes have work."""
        if end - start > self._shared_limit.messages:
            return False
        return self._mark(end).bytes_through - self._bytes_before(start + 1) <= self._shared_limit.bytes

    def _copied_batch(self, start: LanePlaces, last_sequence: int, limit: BatchLimit, parallelism: int) -> PlannedBatch:
        first = start.snapshot
        end = plan_copied_end(first, last_sequence, limit, self._snapshot.first_fence)
        is_fence = end == first + 1 and self._snapshot.first_fence(end, end) is not None
        tiles = tile(first, end, (end - first) * COPIED_MESSAGE_BYTES, parallelism, self._copied_partition_bytes)
        return PlannedBatch(start, replace(start, snapshot=end), _ranges(tiles, Lane.COPIED), is_fence=is_fence)

    def _changes_batch(
        self, start: LanePlaces, last: Mark, left_out: frozenset[int], limit: BatchLimit, parallelism: int
    ) -> PlannedBatch | None:
        planned = self._changes_between(start.changes, last, limit, Lane.CHANGES, parallelism)
        if planned is None:
            return None
        end, ranges, definitions = planned
        return PlannedBatch(start, start.after_changes(end, left_out), ranges, bool(definitions), left_out, definitions)

    def _catch_up_batch(self, start: LanePlaces, parallelism: int) -> PlannedBatch | None:
        last = self._mark(start.changes)
        planned = self._changes_between(start.caught_up, last, self._shared_limit, Lane.CATCH_UP, parallelism)
        if planned is None:
            return None
        end, ranges, definitions = planned
        return PlannedBatch(start, start.after_catch_up(end), ranges, bool(definitions), start.cohort, definitions)

    def _changes_between(
        self, first: int, last: Mark, limit: BatchLimit, lane: Lane, parallelism: int
    ) -> tuple[int, tuple[SequenceRange, ...], tuple[tuple[int, int], ...]] | None:
        """Returns the last sequence of a batch of changes that begins after ``first``, its ranges, and where it has
        definitions. None when no transaction is complete."""
        bytes_before = self._bytes_before(first + 1)
        self._marks[last.sequence] = last
        if (
            last.ddl > first
            and last.sequence - first <= DEFINING_MESSAGES
            and last.bytes_through - bytes_before <= DEFINING_BYTES
        ):
            self._look_through(first, last.sequence)
        alone = self._whole_transactions or first < self._alone_through
        end = plan_end(first, bytes_before, last, limit, self._mark, defines_alone=alone)
        if end == first:
            return None
        definitions = definitions_within(first, end, self._mark)
        if self._whole_transactions:
            size, most = self._bytes_before(end + 1) - bytes_before, self._partition_bytes
            tiles = tile_whole(first, end, size, parallelism, lambda sequence: self._mark(sequence).settled, most)
        else:
            most, through = self._partition_bytes, lambda sequence: self._bytes_before(sequence + 1)
            tiles = tile_around(definitions, first, end, through, parallelism, most)
        return end, _ranges(tiles, lane, defines=bool(definitions)), tuple(definitions)

    def _look_through(self, first: int, last: int) -> None:
        """Fetches the marks of all messages between them in one request: a search among definitions asks for many of them."""
        unknown = next((sequence for sequence in range(first + 1, last) if sequence not in self._marks), last)
        if unknown < last:
            self._marks |= {mark.sequence: mark for mark in self._changes.peek_all(unknown, last - 1)}

    def _gathered(self, bytes_before: int, last: Mark) -> Mark:
        """Returns the newest message, after a while when the stream grows fast: each batch costs the same to run and to
        commit, however much is in it, and the time goes to the replicator meanwhile."""
        deadline = time.monotonic() + GATHER_S
        growth = GATHER_RATE
        while GATHER_FROM_BYTES <= last.bytes_through - bytes_before < GATHER_BYTES and growth >= GATHER_RATE:
            if time.monotonic() > deadline:
                break
            time.sleep(GATHER_PAUSE_S)
            newer = self._changes.peek_last() or last
            growth = int((newer.bytes_through - last.bytes_through) / GATHER_PAUSE_S)
            last = max(last, newer, key=lambda mark: mark.sequence)
        return last

    def _last_mark(self, start: int) -> Mark | None:
        """Returns the newest message that may be applied; None without one after ``start``, as far as a lagging replica
        knows."""
        if self._drain_to is not None:
            return self._changes.mark(self._drain_to) if self._drain_to > start else None
        last = self._changes.peek_last()
        return last if last is not None and last.sequence > start else None

    def _bytes_before(self, sequence: int) -> int:
        before = self._marks.get(sequence - 1)
        return self._mark(sequence).bytes_before if before is None else before.bytes_through

    def _mark(self, sequence: int) -> Mark:
        mark = self._marks.get(sequence)
        if mark is None:
            mark = self._changes.mark(sequence) or Mark(sequence, 0, 0, 0)  # removed meanwhile: reading it will raise
            self._marks[sequence] = mark
        return mark


def _ranges(tiles: list[tuple[int, int]], lane: Lane, *, defines: bool = False) -> tuple[SequenceRange, ...]:
    return tuple(SequenceRange(lane, *borders, len(tiles), defines) for borders in tiles)
