"""A message on its way through Spark: from the task that reads it, through the JVM, to the function that writes it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from worker.snapshot_reader import CopiedBody
from worker.stream_reader import Body

_FIELDS = (
    ("copied", pa.bool_(), "boolean"),
    ("partition_first", pa.int64(), "bigint"),
    ("partition_last", pa.int64(), "bigint"),
    ("first_sequence", pa.int64(), "bigint"),
    ("sequence", pa.int64(), "bigint"),
    ("first_ordinal", pa.int64(), "bigint"),
    ("snapshot", pa.string(), "string"),
    ("rows", pa.int64(), "bigint"),
    ("restarts", pa.bool_(), "boolean"),
    ("body", pa.binary(), "binary"),
    ("error", pa.binary(), "binary"),
)
_ARROW_SCHEMA = pa.schema([(name, kind) for name, kind, _ in _FIELDS])
MESSAGE_SCHEMA = ", ".join(f"{name} {spelling}" for name, _, spelling in _FIELDS)
"""In Spark's spelling; the names and order of MessageRow's fields."""


class Range(Protocol):
    copied: bool
    first_sequence: int
    last_sequence: int


class MessageRow(NamedTuple):
    """One body with what its headers say. ``error`` (see ``carried_error``) says why reading stopped; ``body`` is None then.

    ``first_ordinal`` is for changes; ``snapshot``, ``rows`` and ``restarts`` are for copied rows.
    """

    copied: bool
    partition_first: int
    partition_last: int
    first_sequence: int
    sequence: int
    first_ordinal: int
    snapshot: str
    rows: int
    restarts: bool
    body: bytes | None
    error: bytes | None

    @classmethod
    def changes(cls, partition: Range, body: Body) -> MessageRow:
        borders = (partition.first_sequence, partition.last_sequence)
        return cls(False, *borders, body.first_sequence, body.sequence, body.first_ordinal, "", 0, False, body.data, None)

    @classmethod
    def copied_rows(cls, partition: Range, body: CopiedBody) -> MessageRow:
        headers, borders = body.headers, (partition.first_sequence, partition.last_sequence)
        restarts = headers.is_begin and headers.attempt > 1
        sequence = body.sequence
        return cls(True, *borders, sequence, sequence, 0, headers.snapshot, headers.rows, restarts, body.data, None)

    @classmethod
    def nothing(cls, partition: Range, error: bytes | None) -> MessageRow:
        return cls(partition.copied, partition.first_sequence, partition.last_sequence, 0, 0, 0, "", 0, False, None, error)


def arrow_batch(rows: list[MessageRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def message_rows(batch: pa.RecordBatch) -> list[MessageRow]:
    """The inverse of ``arrow_batch``."""
    return [MessageRow(*values) for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
