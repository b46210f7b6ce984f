"""Steps as people write them."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import join  # noqa: F401  what a module only imports is no step of it
from random import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def shout(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    """``v`` in capitals with ``mark`` behind it, and its length as a number."""
    values = pc.binary_join_element_wise(pc.utf8_upper(batch.column("v")), str(settings.get("mark", "!")), "")
    batch = batch.set_column(batch.schema.get_field_index("v"), "v", values)
    return batch.append_column("size", pc.utf8_length(values))


def only_even(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("id"), 1), 0))


def twice(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    """Each row again, with the negative key."""
    again = batch.set_column(0, "id", pc.negate(batch.column("id")))
    return pa.concat_batches([batch, again])


def whole_number(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    """Fails on a text that is none."""
    return batch.append_column("n", pa.array([int(text) for text in batch.column("v").to_pylist()], pa.int32()))


def without_key(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    return batch.drop_columns(["id"])


def emptied_key(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    return batch.set_column(0, "id", pa.nulls(batch.num_rows, pa.int64()))


def nested(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    return batch.append_column("s", pa.array([{"a": 1}] * batch.num_rows, pa.struct([("a", pa.int64())])))


def no_batch(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> Any:
    return batch.to_pydict()


def other_columns(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    return batch if batch.num_rows else batch.append_column("extra", pa.array([], pa.int64()))


def by_chance(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    return batch.append_column("chance", pa.array([random() for _ in range(batch.num_rows)], pa.float64()))


def numbered(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    return batch.append_column("number", pa.array(range(batch.num_rows), pa.int64()))
