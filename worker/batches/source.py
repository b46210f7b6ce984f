"""The group's two streams as one Spark streaming source: first what was copied, then the changes.

An offset is ``{"snapshot": m, "changes": n}``: everything up to message m of the snapshot stream and up to message n of the
change stream. One batch moves one of the two. Change offsets lie only where no source transaction is open, so a micro-batch
ends between transactions; a transaction larger than the batch limit is a batch of its own. Partitions tile the range. A
partition's one row only names its messages: the task that writes them fetches them (``task``), so that no payload goes
through the JVM, which would copy each byte four times between two Python processes.

Changes wait until the copy is finished and applied. That the copy is not begun again meanwhile is looked up after the end of the
change stream was: then every message up to that end is older than any later snapshot, and its changes belong to the copy.

Three kinds of Python processes run this module: the driver makes the class, one planner process answers ``latestOffset`` and
``partitions``, tasks call ``read``. They share nothing, so whoever asks NATS has a connection of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import TransientError
from pgsluice.worker.batches.broker_connection import process_connection
from pgsluice.worker.batches.change_reader import ChangeReader, Mark
from pgsluice.worker.batches.planning import (
    COPIED_MESSAGE_BYTES,
    RANGE_SCHEMA,
    BatchLimit,
    SequenceRange,
    encode_range,
    plan_copied_end,
    plan_end,
    tile,
)
from pgsluice.worker.batches.snapshot_reader import SnapshotReader

SOURCE_NAME = "pgsluice"

IDLE_WAIT_S = 0.2  # how long latestOffset waits before it answers "nothing new"; stopping the query waits for it
FIRST_PAUSE_S = 0.004
LONGEST_PAUSE_S = 0.02
COPY_PAUSE_S = 0.05
GATHER_FROM_BYTES = 1024 * 1024  # so much must have come during the batch before
GATHER_BYTES = 16 * 1024 * 1024  # beyond that a larger batch costs hardly less for each change
GATHER_RATE = 10 * 1024 * 1024  # bytes a second
GATHER_S = 0.4
GATHER_PAUSE_S = 0.05
UNBOUNDED = BatchLimit(messages=1 << 62, bytes=1 << 62)

_log = logging.getLogger(__name__)

Offset = dict[str, int]


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The query starts after ``snapshot_sequence`` and ``applied_sequence``. ``parallelism`` is how many tasks run at once.
    ``drain_to`` is the last change sequence of a query that ends by itself (Spark's AvailableNow); no other looks at it."""

    nats: NatsSettings
    group: str
    snapshot_sequence: int
    applied_sequence: int
    limit: BatchLimit
    parallelism: int
    drain_to: int


def change_source(settings: SourceSettings) -> type[DataSource]:
    """A data source class bound to ``settings``: options would show in Spark's plans and logs, and settings hold secrets."""

    class ChangeSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return SOURCE_NAME

        def schema(self) -> str:
            return RANGE_SCHEMA

        def streamReader(self, schema: Any) -> ChangeStreamReader:  # noqa: N802  Spark's name
            return ChangeStreamReader(settings)

    return ChangeSource


@dataclass(frozen=True)
class RangePartition(InputPartition):  # type: ignore[misc]
    """One task's part of a batch."""

    range: SequenceRange


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's protocol; where a batch ends is ``planning``'s to say, what the streams hold is the readers'."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._target: int | None = None
        self._marks: dict[int, Mark] = {}

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        return {"snapshot": self._settings.snapshot_sequence, "changes": self._settings.applied_sequence}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxBytes(self._settings.limit.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = self._settings.drain_to

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        bounds = UNBOUNDED if isinstance(limit, ReadAllAvailable) else self._settings.limit
        try:
            return self._end_after(start, bounds)
        except TransientError as error:
            _log.warning("%s", error)  # the planner's stderr is part of the worker's log; Spark asks again
            return start

    def partitions(self, start: Offset, end: Offset) -> Sequence[RangePartition]:
        parallelism = self._settings.parallelism
        if end["snapshot"] != start["snapshot"]:
            first, last = start["snapshot"], end["snapshot"]
            tiles = tile(first, last, (last - first) * COPIED_MESSAGE_BYTES, parallelism, copied=True)
            return [RangePartition(SequenceRange(True, *borders, len(tiles))) for borders in tiles]
        first, last = start["changes"], end["changes"]
        if first == last:
            return []
        total_bytes = self._mark(last).bytes_through - self._mark(first + 1).bytes_before
        tiles = tile(first, last, total_bytes, parallelism, copied=False)
        return [RangePartition(SequenceRange(False, *borders, len(tiles))) for borders in tiles]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        yield encode_range(partition.range)

    def commit(self, end: Offset) -> None:
        self._marks = {sequence: mark for sequence, mark in self._marks.items() if sequence >= end["changes"]}

    @property
    def _changes(self) -> ChangeReader:
        return ChangeReader(process_connection(self._settings.nats, self._settings.group))

    @property
    def _snapshot(self) -> SnapshotReader:
        return SnapshotReader(process_connection(self._settings.nats, self._settings.group))

    def _end_after(self, start: Offset, limit: BatchLimit) -> Offset:
        copy = self._snapshot.progress()
        if copy is not None and copy.last_sequence > start["snapshot"]:
            first_restart = self._snapshot.first_restart
            return start | {"snapshot": plan_copied_end(start["snapshot"], copy.last_sequence, limit, first_restart)}
        if copy is not None and not copy.is_finished:
            time.sleep(COPY_PAUSE_S)
            return start
        last = self._last_mark(start["changes"])
        if last is None or self._snapshot.progress() != copy:
            return start
        if self._target is None:
            last = self._gathered(start["changes"], last)
        self._marks[last.sequence] = last
        return start | {"changes": plan_end(start["changes"], last, limit, self._mark)}

    def _last_mark(self, start: int) -> Mark | None:
        """The newest message that may be applied; None when there is none after ``start``, or a replica that lags says so."""
        if self._target is not None:
            return self._changes.mark(self._target) if self._target > start else None
        last = self._changes.peek_last() if self._wait_for_message_after(start) else None
        return last if last is not None and last.sequence > start else None

    def _gathered(self, start: int, last: Mark) -> Mark:
        """The newest message, after a while when the stream grows fast: each batch costs the same to plan and to commit, however
        much is in it, and the time goes to the replicator meanwhile."""
        before = self._mark(start + 1).bytes_before
        deadline = time.monotonic() + GATHER_S
        growth = GATHER_RATE
        while GATHER_FROM_BYTES <= last.bytes_through - before < GATHER_BYTES and growth >= GATHER_RATE:
            if time.monotonic() > deadline:
                break
            time.sleep(GATHER_PAUSE_S)
            newer = self._changes.peek_last() or last
            growth = int((newer.bytes_through - last.bytes_through) / GATHER_PAUSE_S)
            last = max(last, newer, key=lambda mark: mark.sequence)
        return last

    def _wait_for_message_after(self, start: int) -> bool:
        deadline = time.monotonic() + IDLE_WAIT_S
        pause = FIRST_PAUSE_S
        while True:
            mark = self._changes.peek(start + 1)
            if mark is not None:
                self._marks[start + 1] = mark
                return True
            if time.monotonic() > deadline:
                state = self._changes.state()
                return state is not None and state.last_sequence > start  # a gap: reading it will say so
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    def _mark(self, sequence: int) -> Mark:
        mark = self._marks.get(sequence)
        if mark is None:
            mark = self._changes.mark(sequence) or Mark(sequence, 0, 0, 0)  # removed meanwhile: reading it will say so
            self._marks[sequence] = mark
        return mark
