"""The formats of the file sink, and what a Spark task does for each.

JSON lines are encoded and compressed in pieces; each piece is a whole gzip member or zstd frame, which readers take one after the
other. Rows for Parquet are typed, in pieces that are Arrow streams (manual: "Serialization and Interprocess Communication"): a
piece holds whole streams, one for each table, of which ``parquet`` makes the files.
"""

from __future__ import annotations

import enum
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.worker.sinks.file import parquet
from pgsluice.worker.sinks.file.options import FileSinkSettings
from pgsluice.worker.sinks.file.output_directory import FileFormat, LineFormat
from pgsluice.worker.sinks.file.rows import rows_of_copy, rows_of_message
from pgsluice.worker.sinks.file.scratch import ScratchWriter
from pgsluice.worker.sinks.lines.line_output import LineShape, receipt_bodies
from pgsluice.worker.sinks.sink import Partition, PartitionWriter

GZIP_LEVEL = 1  # three times as fast as the default level, and lines that repeat their keys still shrink to a quarter
ZSTD_LEVEL = 3


class Compression(enum.Enum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"

    @property
    def suffix(self) -> str:
        """What it adds to a file's name."""
        return {Compression.NONE: "", Compression.GZIP: ".gz", Compression.ZSTD: ".zst"}[self]

    def compress(self, data: bytes) -> bytes:
        """Nothing stays nothing."""
        if not data:
            return data
        match self:
            case Compression.NONE:
                return data
            case Compression.GZIP:
                return gzip.compress(data, GZIP_LEVEL, mtime=0)
            case Compression.ZSTD:
                compressed: bytes = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(data, asbytes=True)
                return compressed
            case unreachable:
                assert_never(unreachable)


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Receipt bodies are pieces (``scratch``) of about a mebibyte of lines each, before compression."""

    scratch: ScratchWriter
    compression: Compression
    transactions: bool
    shape: LineShape

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return self._receipts((self.shape.encode(message, transactions=self.transactions), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return self._receipts((self.shape.encode_copied(rows), not rows.more_follow) for rows in copied)

    def _receipts(self, lines: Iterable[tuple[list[bytes], bool]]) -> Iterator[bytes]:
        return self.scratch.receipts(map(self.compression.compress, receipt_bodies(lines)))


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


LINES = {LineShape.JSON: ".jsonl", LineShape.PG_FLO: ".pg-flo.jsonl"}
"""No file holds lines of two shapes, so each has a name of its own."""
PARQUET = "parquet"


def formats_by_suffix(settings: FileSinkSettings) -> dict[str, FileFormat]:
    """All formats: a worker may find files in progress of one it was started with before."""
    lines = [LineFormat(suffix + compression.suffix) for suffix in LINES.values() for compression in Compression]
    formats: list[FileFormat] = [*lines, parquet.ParquetFormat(settings.compression)]
    return {file_format.suffix: file_format for file_format in formats}


def suffix_of(settings: FileSinkSettings) -> str:
    if settings.format == PARQUET:
        return parquet.SUFFIX
    return LINES[LineShape(settings.format)] + Compression(settings.compression).suffix


def new_writer(settings: FileSinkSettings, scratch: ScratchWriter) -> PartitionWriter:
    if settings.format == PARQUET:
        return RowWriter(scratch)
    return LineWriter(scratch, Compression(settings.compression), settings.transactions, LineShape(settings.format))
