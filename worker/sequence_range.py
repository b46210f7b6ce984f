"""Which messages a task is to fetch and write: the one row of each partition, on its way through Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

import pyarrow as pa

_FIELDS = (
    ("copied", pa.bool_(), "boolean"),
    ("first_sequence", pa.int64(), "bigint"),
    ("last_sequence", pa.int64(), "bigint"),
    ("partitions", pa.int64(), "bigint"),
)
_ARROW_SCHEMA = pa.schema([(name, kind) for name, kind, _ in _FIELDS])
RANGE_SCHEMA = ", ".join(f"{name} {spelling}" for name, _, spelling in _FIELDS)
"""In Spark's spelling; the names and order of SequenceRange's fields."""


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Messages of the snapshot stream (``copied``) or of the change stream; ``partitions`` is how many ranges the batch has."""

    copied: bool
    first_sequence: int
    last_sequence: int
    partitions: int


def encode_range(messages: SequenceRange) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(astuple(messages), _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def decode_ranges(batches: Iterable[pa.RecordBatch]) -> list[SequenceRange]:
    """The inverse of ``encode_range``, for all batches that a task is given."""
    return [SequenceRange(**row) for batch in batches for row in batch.to_pylist()]
