"""Rows for Parquet in tasks: typed, in pieces that are Arrow streams (manual: "Serialization and Interprocess Communication").

A piece holds whole streams one behind the other, one for each table. ``parquet`` makes the files of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from shared.changes import CopiedRows, MessageChanges
from worker.sinks.file.rows import rows_of_copy, rows_of_message
from worker.sinks.file.scratch import ScratchWriter
from worker.sinks.sink import Partition

PIECE_BYTES = 8 * 1024 * 1024
"""Of rows in memory. Larger streams are read faster; a task holds a piece up to four times while it is made."""


@dataclass(frozen=True, slots=True)
class RowWriter:
    scratch: ScratchWriter

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return self.scratch.receipts(_pieces((list(rows_of_message(message)), True) for message in messages))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return self.scratch.receipts(_pieces(([rows_of_copy(rows)], not rows.more_follow) for rows in copied))


def _pieces(rows_of_messages: Iterable[tuple[list[pa.RecordBatch], bool]]) -> Iterator[bytes]:
    """At least one piece. Each message's rows come with whether they are its last."""
    gathered: dict[bytes, list[pa.RecordBatch]] = {}  # by schema: as objects, they are equal when their metadata is not
    size, is_covered = 0, False  # covered: every message taken so far is in a piece
    for batches, is_whole in rows_of_messages:
        for batch in batches:
            if batch.num_rows:
                gathered.setdefault(batch.schema.serialize().to_pybytes(), []).append(batch)
                size += batch.nbytes
        is_covered = is_whole and size >= PIECE_BYTES
        if is_covered:
            yield _encode(gathered)
            gathered, size = {}, 0
    if not is_covered:
        yield _encode(gathered)


def _encode(gathered: dict[bytes, list[pa.RecordBatch]]) -> bytes:
    output = pa.BufferOutputStream()
    for batches in gathered.values():
        with pa.ipc.new_stream(output, batches[0].schema) as stream:
            for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                stream.write_batch(batch)
    encoded: bytes = output.getvalue().to_pybytes()
    return encoded
