"""What the next batch is: first what was copied, then the changes.

A batch moves one of the two streams on. Batches of changes end only where no source transaction is open; a transaction larger
than the batch limit is a batch of its own.

Changes wait until the copy is finished and applied. That the copy is not begun again meanwhile is looked up after the end of the
change stream was: then every message up to that end is older than any later snapshot, and its changes belong to the copy.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from nats.aio.client import Client
from nats.aio.msg import Msg

from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.change_reader import ChangeReader, Mark
from pgsluice.worker.batches.planning import (
    COPIED_MESSAGE_BYTES,
    BatchLimit,
    SequenceRange,
    plan_copied_end,
    plan_end,
    tile,
)
from pgsluice.worker.batches.snapshot_reader import SnapshotReader
from pgsluice.worker.sinks.sink import Applied

FIRST_PAUSE_S = 0.004
LONGEST_PAUSE_S = 1.0
LONGEST_PAUSE_WHERE_IT_RINGS_S = 5.0
PAUSE_GROWTH = 1.5
GATHER_FROM_BYTES = 1024 * 1024
GATHER_BYTES = 16 * 1024 * 1024  # beyond that a larger batch costs hardly less for each change
GATHER_RATE = 10 * 1024 * 1024  # bytes a second
GATHER_S = 0.4
GATHER_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Between two messages of each stream: everything up to these sequences comes before it."""

    snapshot: int
    changes: int

    @classmethod
    def of(cls, applied: Applied) -> Place:
        return cls(applied.snapshot_sequence, applied.sequence)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """``ranges`` tile the messages from ``start`` to ``end``, of one of the streams. ``is_fence``: the next batch must not be
    begun before this one is applied, and this one not before the one before it is."""

    start: Place
    end: Place
    ranges: tuple[SequenceRange, ...]
    is_fence: bool = False

    @property
    def is_copied(self) -> bool:
        return self.end.snapshot != self.start.snapshot


class Bell:
    """Tells that there may be something new, so that whoever waits for it may sleep.

    The replicator rings (``names.bell_subject``) after what it published was acknowledged. A ring says nothing but that, so who
    else may publish there can do no harm by it. It may get lost, and earlier versions never ring: so a wait is over after a
    while, too, and each is longer than the one before until something comes. How long they become at most depends on whether
    the last news came by a ring.
    """

    def __init__(self) -> None:
        self._rung = threading.Event()
        self.pause_s = FIRST_PAUSE_S
        """How long the next wait is at most."""
        self.longest_pause_s = LONGEST_PAUSE_S
        """What it grows to."""
        self._was_quiet = False
        """Whether the last wait ended by itself, and nothing was found since."""

    async def listen(self, client: Client, names: GroupNames) -> None:
        """Until ``client`` is closed. To be called on its event loop; the rest is for any thread."""

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
        """Somebody looked, and there was something."""
        self.pause_s = FIRST_PAUSE_S  # where nobody rings, more may come soon all the same
        if self._was_quiet:
            self.longest_pause_s = LONGEST_PAUSE_S
        self._was_quiet = False

    def note_look(self) -> None:
        """To be called before one looks: what rings from now on ends the next wait."""
        self._rung.clear()

    def wait(self, deadline: float) -> bool:
        """Whether it is worth looking again: False at the ``deadline``, of the monotonic clock."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        self._was_quiet = not self._rung.wait(min(self.pause_s, left_s))
        if self._was_quiet:
            self.pause_s = min(self.pause_s * PAUSE_GROWTH, self.longest_pause_s)
        return True


class BatchPlanner:
    """Blocking calls, each of which raises TransientError when NATS does not answer. ``drain_to`` is the last change sequence of
    a worker that ends by itself; None for one that goes on for ever."""

    def __init__(self, connection: BrokerConnection, bell: Bell, limit: BatchLimit, drain_to: int | None) -> None:
        self._changes = ChangeReader(connection)
        self._snapshot = SnapshotReader(connection)
        self._bell = bell
        self._limit = limit
        self._drain_to = drain_to
        self._marks: dict[int, Mark] = {}

    def next(self, start: Place, parallelism: int, patience_s: float) -> PlannedBatch | None:
        """The batch that begins at ``start``, in partitions for ``parallelism`` tasks at a time. None when there is nothing new
        within ``patience_s``, or nothing that may be applied yet."""
        deadline = time.monotonic() + patience_s
        while True:
            self._bell.note_look()
            batch = self._batch(start, parallelism)
            if batch is not None:
                self._bell.note_news()
                return batch
            if not self._bell.wait(deadline):
                return None

    def wake(self) -> None:
        """Has a ``next`` that waits look once more. Any thread may call."""
        self._bell.wake()

    def _batch(self, start: Place, parallelism: int) -> PlannedBatch | None:
        last = self._last_mark(start.changes)
        copy = self._snapshot.progress()
        if copy is not None and copy.last_sequence > start.snapshot:
            return self._copied_batch(start, copy.last_sequence, parallelism)
        if copy is not None and not copy.is_finished:
            return None
        return None if last is None else self._changes_batch(start, last, parallelism)

    def _copied_batch(self, start: Place, last_sequence: int, parallelism: int) -> PlannedBatch:
        first = start.snapshot
        end = plan_copied_end(first, last_sequence, self._limit, self._snapshot.first_restart)
        restarts = end == first + 1 and self._snapshot.first_restart(end, end) is not None
        tiles = tile(first, end, (end - first) * COPIED_MESSAGE_BYTES, parallelism, copied=True)
        return PlannedBatch(start, replace(start, snapshot=end), _ranges(tiles, copied=True), is_fence=restarts)

    def _changes_batch(self, start: Place, last: Mark, parallelism: int) -> PlannedBatch | None:
        first = start.changes
        self._marks = {sequence: mark for sequence, mark in self._marks.items() if sequence >= first}
        bytes_before = self._bytes_before(first + 1)
        if self._drain_to is None:
            last = self._gathered(bytes_before, last)
        self._marks[last.sequence] = last
        end = plan_end(first, bytes_before, last, self._limit, self._mark)
        if end == first:
            return None
        total_bytes = self._mark(end).bytes_through - bytes_before
        tiles = tile(first, end, total_bytes, parallelism, copied=False)
        return PlannedBatch(start, replace(start, changes=end), _ranges(tiles, copied=False))

    def _gathered(self, bytes_before: int, last: Mark) -> Mark:
        """The newest message, after a while when the stream grows fast: each batch costs the same to run and to commit, however
        much is in it, and the time goes to the replicator meanwhile."""
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
        """The newest message that may be applied; None when there is none after ``start``, or a replica that lags says so."""
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
            mark = self._changes.mark(sequence) or Mark(sequence, 0, 0, 0)  # removed meanwhile: reading it will say so
            self._marks[sequence] = mark
        return mark


def _ranges(tiles: list[tuple[int, int]], *, copied: bool) -> tuple[SequenceRange, ...]:
    return tuple(SequenceRange(copied, *borders, len(tiles)) for borders in tiles)
