"""``spark.read.format("pgsluice")`` and ``spark.readStream.format("pgsluice")``: a group's changes, one row per change.

The class is registered by ``pgsluice.register``. Spark creates it in a separate Python process (``schema``), asks a
reader in another one for the parts to read, and lets tasks read them; each has its own connection to NATS.
``change_rows`` describes the rows, ``feed_stream`` where batches begin and end. Rows that a copy read are in another
stream; ``table_copy`` reads them where the option ``with-copy`` asks for them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pgsluice.shared.errors import MissingMessagesError, PgsluiceError, TransientError, UsageError
from pgsluice.shared.process.defect import unexpected
from pgsluice.shared.rows.changes import MessageChanges, Transaction
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.worker.batches.broker_connection import BrokerConnection, process_connection
from pgsluice.worker.batches.change_reader import Body, ChangeReader
from pgsluice.worker.batches.planning import BatchLimit
from pgsluice.worker.data_source.change_rows import ChangeRows, WantsTable, gathered
from pgsluice.worker.data_source.feed_stream import FeedOffset, FeedRange, FeedStream, check_follows, missing_error
from pgsluice.worker.data_source.read_options import ReadSettings, UntilEnd, read_settings
from pgsluice.worker.data_source.table_copy import CopyRange, copied_batches, find_copy, ranges_of
from pgsluice.worker.data_source.typed_columns import NUMBER, row_type

FORMAT = "pgsluice"

IDLE_WAIT_S = 0.2  # how long latestOffset waits before it answers "nothing new"; stopping the query waits for it
IDLE_PAUSE_S = 0.02
PATIENCE_S = 60.0  # with a broker that does not answer any more; a query that ends is noticed
OID = "oid"
"""Key in the metadata of a schema's field ``after``: the OID of the table whose rows are read."""
UNBOUNDED = BatchLimit(messages=1 << 62, bytes=1 << 62)

_log = logging.getLogger(__name__)  # not the project's own: the session is the user's, and so is its log

Offset = dict[str, Any]


class ChangeFeed(DataSource):  # type: ignore[misc]
    """Raises UsageError, by its constructor, for what is wrong with the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = read_settings(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        if self._options.table is not None:
            table = _stream(self._options).table()
            return change_schema(row_type(table), table.oid)
        if self._options.tables:
            _stream(self._options).check_tables()
        return change_schema(StringType())

    def reader(self, schema: StructType) -> ChangeFeedReader:
        return ChangeFeedReader(self._options, _checked(schema))

    def streamReader(self, schema: StructType) -> ChangeFeedStreamReader:  # noqa: N802  Spark's name
        if self._options.until != UntilEnd():
            raise UsageError("the option 'until' is for spark.read", "a stream ends by trigger(availableNow=True), or continues")
        if self._options.with_copy:
            raise UsageError("the option 'with-copy' is for spark.read", "a stream has the changes alone")
        return ChangeFeedStreamReader(self._options, _checked(schema))


def change_schema(image: DataType, oid: int = 0) -> StructType:
    """``image`` is the type of old and new rows, which are of the table ``oid`` where it is one."""
    position = StructType([StructField("commit_lsn", LongType()), StructField("ordinal", LongType())])
    fields = {
        "sequence": LongType(),
        "number": IntegerType(),
        "position": position,
        "position_text": StringType(),
        "committed_at": TimestampType(),
        "xid": LongType(),
        "operation": StringType(),
        "schema": StringType(),
        "table": StringType(),
        "before": image,
        "after": image,
        "unchanged": ArrayType(StringType()),
        "as_text": StructType([StructField(name, MapType(StringType(), StringType())) for name in ("before", "after")]),
    }
    of_table = {"after": {OID: oid}} if oid else {}
    return StructType([StructField(name, kind, metadata=of_table.get(name)) for name, kind in fields.items()])


def _checked(schema: StructType) -> StructType:
    if schema.names != change_schema(StringType()).names:
        raise UsageError("the format pgsluice has a fixed schema", "leave .schema(…) away; the option 'table' types its columns")
    return schema


def _connection(options: ReadSettings) -> BrokerConnection:
    return process_connection(options.nats, options.group, "reader")


def _stream(options: ReadSettings) -> FeedStream:
    return FeedStream(_connection(options), options)


@dataclass(frozen=True)
class FeedPartition(InputPartition):  # type: ignore[misc]
    """One task's part of a batch."""

    range: FeedRange | CopyRange


class _TaskReader:
    """Reads a task's part, in a batch and in a stream. Picklable."""

    def __init__(self, options: ReadSettings, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FeedPartition):
            return  # Spark requests a part even when there is nothing to read
        rows = ChangeRows(to_arrow_schema(self._schema, timezone="UTC"), self._wants, self._numbers)
        try:
            yield from gathered(self._read(rows, partition.range))
        except PgsluiceError:
            raise
        except Exception as error:  # noqa: BLE001  Spark prints what a task raises, and this one may quote a row
            raise unexpected(error, "a task") from None

    def _read(self, rows: ChangeRows, part: FeedRange | CopyRange) -> Iterator[tuple[pa.RecordBatch, int]]:
        match part:
            case FeedRange():
                yield from self._batches(rows, part)
            case CopyRange():
                for batch in copied_batches(_connection(self._options), part):
                    yield rows.copied_batch(batch.sequence, part.lsn, batch.table, batch.rows), batch.size
            case _:
                assert_never(part)

    @property
    def _wants(self) -> WantsTable:
        """One table is found by its OID, which it had under an earlier name, too, and by its name, which it keeps when it is
        dropped and made again; with its copy it is that table alone."""
        table, oid = self._options.table, self._schema["after"].metadata.get(OID)
        if self._options.with_copy:
            return lambda found, schema, name: found == oid
        if table is None:
            return self._options.wants
        return lambda found, schema, name: found == oid or table.matches(schema, name)

    @property
    def _numbers(self) -> dict[str, int]:
        image = self._schema["after"].dataType
        return {each.name: each.metadata.get(NUMBER, 0) for each in image} if isinstance(image, StructType) else {}

    def _batches(self, rows: ChangeRows, part: FeedRange) -> Iterator[tuple[pa.RecordBatch, int]]:
        after, is_torn = part.after, part.is_first
        for body, follows_gap in self._bodies(part):
            check_follows(body.first_sequence, body.after, None if follows_gap else after)
            after, is_torn = body.anchor, is_torn or follows_gap
            message = decode_changes(
                body.data, first_sequence=body.first_sequence, sequence=body.sequence, first_ordinal=body.first_ordinal
            )
            batch = rows.batch(message, _Wanted(part.since, part.until, part.copied_before, is_torn))
            is_torn = is_torn and not _begins_one(message)
            if batch is not None:
                yield batch, len(body.data)

    def _bodies(self, part: FeedRange) -> Iterator[tuple[Body, bool]]:
        """Yields bodies, each with whether messages before it were gone. Raises MissingMessagesError unless the reader
        continues without them."""
        reader = ChangeReader(_connection(self._options), part.id_prefix)
        first, follows_gap = part.first_sequence, False
        while first <= part.last_sequence:
            try:
                for body in reader.bodies(first, part.last_sequence):
                    yield body, follows_gap
                    first, follows_gap = body.sequence + 1, False
                return
            except MissingMessagesError as missing:
                if self._options.fails_on_data_loss:
                    raise missing_error(first, missing.next_sequence) from None
                first, follows_gap = missing.next_sequence, True


@dataclass(frozen=True, slots=True)
class _Wanted:
    """``is_torn``: what is left of a transaction whose beginning is gone is not wanted."""

    since: int
    until: int | None
    copied_before: int
    is_torn: bool

    def __call__(self, transaction: Transaction) -> bool:
        is_late_enough = not self.since or transaction.committed_at >= self.since
        is_early_enough = self.until is None or transaction.committed_at <= self.until
        is_whole = transaction.begins or not self.is_torn
        return is_late_enough and is_early_enough and is_whole and transaction.commit_lsn >= self.copied_before


def _begins_one(message: MessageChanges) -> bool:
    return any(transaction.begins for transaction in message.transactions)


class ChangeFeedReader(_TaskReader, DataSourceReader):  # type: ignore[misc]
    """Spark's protocol of a batch, which is planned once: a second action reads again, up to the end that there is then."""

    def partitions(self) -> list[FeedPartition]:
        stream, tasks = _stream(self._options), os.cpu_count() or 1
        start, end = stream.start(), stream.end()
        if not self._options.with_copy:
            return [FeedPartition(part) for part in stream.ranges(start, end, tasks)]
        copy = self._copy()
        stream.check_whole_since(copy.lsn)
        changes = [replace(part, copied_before=copy.lsn) for part in stream.ranges(start, end, tasks)]
        return [FeedPartition(part) for part in (*ranges_of(copy, tasks), *changes)]

    def _copy(self) -> CopyRange:
        """Looked up after the end of the stream: a copy that begins later holds whatever is missing before that end."""
        assert self._options.table is not None, "read_options asks for it"
        return find_copy(_connection(self._options), self._schema["after"].metadata[OID], self._options.table.text)


class ChangeFeedStreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's protocol of a stream. Its planner is one process; tasks get a copy that reads only."""

    def __init__(self, options: ReadSettings, schema: StructType) -> None:
        super().__init__(options, schema)
        self._stream: FeedStream | None = None
        self._target: int | None = None
        self._silent_since: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        return self._planner.start().encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxBytes(self._options.limit.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = self._planner.newest_settled(self._planner.state())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        bounds = UNBOUNDED if isinstance(limit, ReadAllAvailable) else self._options.limit
        try:
            end = self._next_offset(FeedOffset.decode(start), bounds)
            self._silent_since = None
        except TransientError as error:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > PATIENCE_S:
                raise
            _log.warning("%s", error)  # Spark asks again
            return start
        return end.encode()

    def partitions(self, start: Offset, end: Offset) -> list[FeedPartition]:
        ranges = self._planner.ranges(FeedOffset.decode(start), FeedOffset.decode(end).sequence, os.cpu_count() or 1)
        return [FeedPartition(part) for part in ranges]

    def commit(self, end: Offset) -> None:
        self._planner.forget_before(FeedOffset.decode(end).sequence)

    @property
    def _planner(self) -> FeedStream:
        if self._stream is None:
            self._stream = _stream(self._options)
        return self._stream

    def _next_offset(self, start: FeedOffset, limit: BatchLimit) -> FeedOffset:
        deadline = time.monotonic() + (IDLE_WAIT_S if self._target is None else 0)
        while True:
            end = self._planner.next_offset(start, limit, self._target)
            if end != start or time.monotonic() >= deadline:
                return end
            time.sleep(IDLE_PAUSE_S)
