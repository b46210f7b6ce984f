"""One micro-batch on both sides of the Spark border: what a task does with messages, and what the driver makes of the answers.

Between them go rows of RECEIPT_SCHEMA. Each says which part of the stream it covers, so that the driver proves that nothing is
missing and nothing is there twice before it commits. A row without a body covers what a sink has no receipt for (chunks of a
message that began in another partition); a row with an error says why the task stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from shared.changes import MessageChanges
from shared.errors import PgsluiceError, TerminalError
from shared.pgoutput.columns import decode_changes
from worker.carried_error import decode_error, encode_error
from worker.sinks.sink import Partition, PartitionWriter, Receipt

RECEIPT_SCHEMA = (
    "first_sequence bigint, last_sequence bigint, changes bigint, commit_lsn bigint, committed_at bigint, "
    "body binary, error binary"
)
_ARROW_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("first_sequence", "last_sequence", "changes", "commit_lsn", "committed_at")]
    + [("body", pa.binary()), ("error", pa.binary())]
)

WriteTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def write_partition(writer: PartitionWriter) -> WriteTask:
    """The function for ``mapInArrow``: rows of ``source.MESSAGE_SCHEMA`` in, rows of RECEIPT_SCHEMA out."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        coverage = _Coverage()
        try:
            first = next(batches)
            coverage.start(first)
            messages = coverage.decode(first, batches)
            for body in writer.write(coverage.partition, messages):
                yield _row(*coverage.advance(), body, None)
            yield _row(*coverage.finish(), None, None)
        except PgsluiceError as error:
            yield _row(0, 0, 0, 0, 0, None, encode_error(error))

    return write


class _Coverage:
    """Decodes a partition's messages, and knows which part of the stream the sink has taken since the last receipt."""

    def __init__(self) -> None:
        self.partition = Partition(0, 0)
        self._covered = 0
        self._taken = 0
        self._changes = 0
        self._commit_lsn = 0
        self._committed_at = 0

    def start(self, first: pa.RecordBatch) -> None:
        self.partition = Partition(first.column(0)[0].as_py(), first.column(1)[0].as_py())
        self._covered = self._taken = self.partition.first_sequence - 1

    def decode(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[MessageChanges]:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            _, _, first_sequences, sequences, ordinals, bodies, errors = batch.columns
            for i in range(batch.num_rows):
                if errors[i].is_valid:
                    raise decode_error(errors[i].as_py())
                if bodies[i].is_valid:
                    yield self._take(
                        decode_changes(
                            bodies[i].as_py(),
                            first_sequence=first_sequences[i].as_py(),
                            sequence=sequences[i].as_py(),
                            first_ordinal=ordinals[i].as_py(),
                        )
                    )
            batch = next(rest, None)

    def _take(self, message: MessageChanges) -> MessageChanges:
        self._taken = min(message.sequence, self.partition.last_sequence)
        self._changes += message.change_count
        for transaction in message.transactions:
            if transaction.commits:
                self._commit_lsn, self._committed_at = transaction.commit_lsn, transaction.committed_at
        return message

    def advance(self) -> tuple[int, int, int, int, int]:
        """The first five columns of a receipt for what was taken since the one before."""
        covered = (self._covered + 1, self._taken, self._changes, self._commit_lsn, self._committed_at)
        self._covered, self._changes, self._commit_lsn, self._committed_at = self._taken, 0, 0, 0
        return covered

    def finish(self) -> tuple[int, int, int, int, int]:
        """The same for the rest of the partition, when the sink has written everything."""
        self._taken = self.partition.last_sequence
        return self.advance()


def _row(*values: Any) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(values, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def read_receipts(rows: Iterable[Any], first_sequence: int) -> Iterator[Receipt]:
    """The receipts in ``rows`` (of RECEIPT_SCHEMA, in partition order), which must cover the stream from ``first_sequence`` on.

    Raises the error that a task sent, or TerminalError when the rows leave a gap or overlap. Rows without a body extend
    the receipt before them, or the one after when they come first.
    """
    pending: Receipt | None = None
    begin = expected = first_sequence
    changes = 0
    for row in rows:
        if row.error is not None:
            raise decode_error(bytes(row.error))
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
        pending = Receipt(begin, row.last_sequence, row.changes + changes, row.commit_lsn, row.committed_at, bytes(row.body))
        changes = 0
    if pending is not None:
        yield pending
