"""The change stream as a Spark streaming source.

An offset is ``{"sequence": n}``: every message up to and including n. Offsets lie only where no source transaction is open, so
a micro-batch ends between transactions; a transaction larger than the batch limit is a batch of its own. Partitions tile the
offset range; each is read with batched direct gets by the task that writes it.

Three kinds of Python processes run this module: the driver makes the class, one planner process answers ``latestOffset`` and
``partitions``, tasks call ``read``. They share nothing, so each has a NATS connection of its own.

A row holds one message body (chunks joined) or, in ``error``, why reading stopped (see ``carried_error``). A partition in which
no body begins has one row with neither, so that every partition is heard of.
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

from shared.errors import PgsluiceError, TransientError
from shared.settings import NatsSettings
from worker.batch_planning import BatchLimit, plan_end, tile
from worker.carried_error import encode_error
from worker.stream_reader import Body, Mark, StreamReader, process_reader

SOURCE_NAME = "pgsluice_changes"

MESSAGE_SCHEMA = (
    "partition_first bigint, partition_last bigint, first_sequence bigint, sequence bigint, first_ordinal bigint, "
    "body binary, error binary"
)
_INT64_COLUMNS = 5
_ARROW_SCHEMA = pa.schema(
    [
        pa.field(name, pa.int64() if i < _INT64_COLUMNS else pa.binary())
        for i, name in enumerate(
            ("partition_first", "partition_last", "first_sequence", "sequence", "first_ordinal", "body", "error")
        )
    ]
)

ARROW_BATCH_BYTES = 4 * 1024 * 1024
IDLE_WAIT_S = 0.2  # how long latestOffset waits before it answers "nothing new"; stopping the query waits for it
FIRST_PAUSE_S = 0.004
LONGEST_PAUSE_S = 0.02
UNBOUNDED = BatchLimit(messages=1 << 62, bytes=1 << 62)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """``applied_sequence`` is where the query starts (exclusive). ``parallelism`` is the number of cores that run tasks.
    ``drain_to`` is the last sequence of a query that ends by itself (Spark's AvailableNow); no other query looks at it."""

    nats: NatsSettings
    group: str
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
            return MESSAGE_SCHEMA

        def streamReader(self, schema: Any) -> ChangeStreamReader:  # noqa: N802  Spark's name
            return ChangeStreamReader(settings)

    return ChangeSource


@dataclass(frozen=True)
class SequenceRange(InputPartition):  # type: ignore[misc]
    first_sequence: int
    last_sequence: int


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's protocol; where a batch ends is ``batch_planning``'s to say, how messages are read is ``stream_reader``'s."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._target: int | None = None
        self._marks: dict[int, Mark] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        return {"sequence": self._settings.applied_sequence}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxBytes(self._settings.limit.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = self._settings.drain_to

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  Spark's name
        bounds = UNBOUNDED if isinstance(limit, ReadAllAvailable) else self._settings.limit
        try:
            return {"sequence": self._end_after(start["sequence"], bounds)}
        except TransientError as error:
            _log.warning("%s", error)  # the planner's stderr is part of the worker's log; Spark asks again
            return start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[SequenceRange]:
        first, last = start["sequence"], end["sequence"]
        if first == last:
            return []
        total_bytes = self._mark(last).bytes_through - self._mark(first + 1).bytes_before
        return [SequenceRange(*borders) for borders in tile(first, last, total_bytes, self._settings.parallelism)]

    def read(self, partition: SequenceRange) -> Iterator[pa.RecordBatch]:
        try:
            yield from _arrow_batches(partition, self._reader)
        except PgsluiceError as error:
            yield _arrow_batch(partition, [], encode_error(error))

    def commit(self, end: dict[str, int]) -> None:
        self._marks = {sequence: mark for sequence, mark in self._marks.items() if sequence >= end["sequence"]}

    @property
    def _reader(self) -> StreamReader:
        return process_reader(self._settings.nats, self._settings.group)

    def _end_after(self, start: int, limit: BatchLimit) -> int:
        if self._target is None:
            if not self._wait_for_message_after(start):
                return start
            last = self._reader.last_mark()
        else:
            last = self._reader.mark(self._target) if self._target > start else None
        if last is None:
            return start
        self._marks[last.sequence] = last
        return plan_end(start, last, limit, self._mark)

    def _wait_for_message_after(self, start: int) -> bool:
        deadline = time.monotonic() + IDLE_WAIT_S
        pause = FIRST_PAUSE_S
        while True:
            mark = self._reader.mark(start + 1)
            if mark is not None:
                self._marks[start + 1] = mark
                return True
            if time.monotonic() > deadline:
                state = self._reader.state()
                return state is not None and state.last_sequence > start  # a gap: reading it will say so
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    def _mark(self, sequence: int) -> Mark:
        mark = self._marks.get(sequence)
        if mark is None:
            mark = self._reader.mark(sequence) or Mark(sequence, 0, 0, 0)  # removed meanwhile: reading it will say so
            self._marks[sequence] = mark
        return mark


def _arrow_batches(partition: SequenceRange, reader: StreamReader) -> Iterator[pa.RecordBatch]:
    bodies: list[Body] = []
    size, found = 0, False
    for body in reader.bodies(partition.first_sequence, partition.last_sequence):
        bodies.append(body)
        size += len(body.data)
        if size >= ARROW_BATCH_BYTES:
            yield _arrow_batch(partition, bodies, None)
            bodies, size, found = [], 0, True
    if bodies or not found:
        yield _arrow_batch(partition, bodies, None)


def _arrow_batch(partition: SequenceRange, bodies: list[Body], error: bytes | None) -> pa.RecordBatch:
    rows: list[tuple[Any, ...]] = [
        (
            partition.first_sequence,
            partition.last_sequence,
            body.first_sequence,
            body.sequence,
            body.first_ordinal,
            body.data,
            None,
        )
        for body in bodies
    ]
    if not rows:
        rows.append((partition.first_sequence, partition.last_sequence, 0, 0, 0, None, error))
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)], schema=_ARROW_SCHEMA
    )
