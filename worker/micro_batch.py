"""A micro-batch on both sides of the Spark border: what a task does with messages, and what the driver makes of the answers.

Between them go rows of RECEIPT_SCHEMA. Each says which part of the stream it covers, so that the driver proves that nothing is
missing and nothing is there twice before it commits. A row without a body covers what a sink has no receipt for (chunks of a
message that began in another partition); a row with an error says why the task stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from shared.changes import CopiedRows, MessageChanges
from shared.errors import PgsluiceError, TerminalError
from shared.pgoutput import decode_changes
from shared.snapshot_message import split_snapshot_body
from worker.carried_error import decode_error, encode_error
from worker.message_rows import MessageRow, message_rows
from worker.ownership import Ownership
from worker.sinks.sink import Applied, Partition, PartitionWriter, Receipt

_FIELDS = (
    ("copied", pa.bool_(), "boolean"),
    ("first_sequence", pa.int64(), "bigint"),
    ("last_sequence", pa.int64(), "bigint"),
    ("changes", pa.int64(), "bigint"),
    ("commit_lsn", pa.int64(), "bigint"),
    ("committed_at", pa.int64(), "bigint"),
    ("body", pa.binary(), "binary"),
    ("error", pa.binary(), "binary"),
)
_ARROW_SCHEMA = pa.schema([(name, kind) for name, kind, _ in _FIELDS])
RECEIPT_SCHEMA = ", ".join(f"{name} {spelling}" for name, _, spelling in _FIELDS)

WriteTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def write_partition(writer: PartitionWriter, ownership: Ownership) -> WriteTask:
    """The function for ``mapInArrow``: rows of ``message_rows.MESSAGE_SCHEMA`` in, rows of RECEIPT_SCHEMA out."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in message_rows(batch))
        first = next(rows)
        share = _PartitionShare(first, ownership)
        try:
            for body in share.written_by(writer, chain([first], rows)):
                yield _row(*share.advance(), body, None)
            yield _row(*share.finish(), None, None)
        except PgsluiceError as error:
            yield _row(first.copied, 0, 0, 0, 0, 0, None, encode_error(error))

    return write


class _PartitionShare:
    """Decodes a partition's messages, and knows which part of the stream the sink has taken since the last receipt."""

    def __init__(self, first: MessageRow, ownership: Ownership) -> None:
        self._copied = first.copied
        self._partition = Partition(first.partition_first, first.partition_last)
        self._ownership = ownership
        self._covered = self._taken = first.partition_first - 1
        self._changes = 0
        self._commit_lsn = 0
        self._committed_at = 0

    def written_by(self, writer: PartitionWriter, rows: Iterable[MessageRow]) -> Iterator[bytes]:
        """The receipt bodies of the sink."""
        if self._copied:
            return writer.write_copied(self._partition, self._copied_rows(rows))
        return writer.write(self._partition, self._messages(rows))

    def advance(self) -> tuple[bool, int, int, int, int, int]:
        """The first columns of a receipt for what was taken since the one before."""
        covered = (self._copied, self._covered + 1, self._taken, self._changes, self._commit_lsn, self._committed_at)
        self._covered, self._changes, self._commit_lsn, self._committed_at = self._taken, 0, 0, 0
        return covered

    def finish(self) -> tuple[bool, int, int, int, int, int]:
        """The same for the rest of the partition, when the sink has written everything."""
        self._taken = self._partition.last_sequence
        return self.advance()

    def _messages(self, rows: Iterable[MessageRow]) -> Iterator[MessageChanges]:
        for row, body in _bodies(rows):
            message = decode_changes(
                body, first_sequence=row.first_sequence, sequence=row.sequence, first_ordinal=row.first_ordinal
            )
            self._taken = min(message.sequence, self._partition.last_sequence)
            self._changes += message.change_count
            for transaction in message.transactions:
                if transaction.commits:
                    self._commit_lsn, self._committed_at = transaction.commit_lsn, transaction.committed_at
            yield self._ownership.without_copied(message)

    def _copied_rows(self, rows: Iterable[MessageRow]) -> Iterator[CopiedRows]:
        for row, body in _bodies(rows):
            table, data = split_snapshot_body(body)
            self._taken = row.sequence
            if self._ownership.counts(table, row.snapshot):
                self._changes += row.rows
                yield CopiedRows(row.sequence, table, row.snapshot, row.rows, data, row.restarts)


def _bodies(rows: Iterable[MessageRow]) -> Iterator[tuple[MessageRow, bytes]]:
    """The rows that hold a body; raises the error that the reading task sent."""
    for row in rows:
        if row.error is not None:
            raise decode_error(row.error)
        if row.body is not None:
            yield row, row.body


def _row(*values: Any) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(values, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def read_receipts(rows: Iterable[Any], applied: Applied) -> Iterator[Receipt]:
    """The receipts in ``rows`` (of RECEIPT_SCHEMA, in partition order), which must go on in one of the streams after ``applied``.

    Raises the error that a task sent, or TerminalError when the rows leave a gap or overlap. Rows without a body extend
    the receipt before them, or the one after when they come first.
    """
    pending: Receipt | None = None
    begin = expected = changes = 0
    for row in rows:
        if row.error is not None:
            raise decode_error(bytes(row.error))
        if not expected:
            begin = expected = (applied.snapshot_sequence if row.copied else applied.sequence) + 1
        if row.first_sequence != expected:
            raise TerminalError(
                f"a micro-batch covers message {row.first_sequence} where {expected} was expected",
                "this is a defect of pgsluice; nothing was applied, please report it",
            )
        expected = row.last_sequence + 1
        if row.body is None:
            changes += row.changes
            if pending is not None:
                pending = replace(pending, last_sequence=row.last_sequence)
            continue
        if pending is not None:
            yield pending
            begin = pending.last_sequence + 1
        body = bytes(row.body)
        pending = Receipt(
            begin, row.last_sequence, row.changes + changes, row.commit_lsn, row.committed_at, body, copied=row.copied
        )
        changes = 0
    if pending is not None:
        yield pending
