"""The formats of the file sink, and the code of a Spark task for each.

JSON lines are encoded and compressed in pieces; each piece is a whole gzip member or zstd frame, which readers take one
after the other. Rows for Parquet are typed, in pieces that are Arrow streams (manual: "Serialization and Interprocess
Communication"): a piece holds whole streams, one for each table. They are gathered in one file in progress, from which
a Parquet file for each table is made when it is full or old:

    .orders.file.0000000013.parquet.part                    in progress: Arrow streams, all tables together
    public.orders/orders.file.0000000012.parquet            finished
    public.orders/.orders.file.0000000013.parquet.part      made, and not yet for readers
    .orders.file.0000000013.parquet.ready                   all files are made, and are being renamed

A table whose definition changed in between gets a second file, ``…13-2.parquet``.
"""

from __future__ import annotations

import enum
import gzip
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import pyarrow as pa

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.worker.sinks.file.options import FileSinkSettings
from pgsluice.worker.sinks.file.output_directory import (
    PART,
    READY,
    FileFormat,
    Layout,
    LineFormat,
    in_one_case,
    is_one_in_both_cases,
    sync_directory,
)
from pgsluice.worker.sinks.file.rows import SCHEMA_NAME, TABLE_NAME, directory_name, rows_of_copy, rows_of_message
from pgsluice.worker.sinks.file.scratch import ScratchWriter
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.place_names import PlaceNames
from pgsluice.worker.sinks.sink import Partition, PartitionWriter

SUFFIX = ".parquet"

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Size of a row group in memory: the driver holds one at a time. Readers work on row groups in parallel."""


GZIP_LEVEL = 1  # three times as fast as the default level, and lines that repeat their keys still shrink to a quarter
ZSTD_LEVEL = 3
PIECE_BYTES = 8 * 1024 * 1024
"""Size of a piece in memory. Larger streams are read faster; a task holds a piece up to four times while it is made."""
LINES = {
    LineShape.JSON: ".jsonl",
    LineShape.FLAT: ".flat.jsonl",
    LineShape.PG_FLO: ".pg-flo.jsonl",
    LineShape.DEBEZIUM: ".debezium.jsonl",
}
"""Suffix by shape: no file holds lines of two shapes."""
PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    compression: str

    @property
    def suffix(self) -> str:
        return SUFFIX

    def part(self, layout: Layout, number: int) -> Path:
        return layout.directory / f".{layout.name(number, SUFFIX)}{PART}"

    def finish(self, layout: Layout, number: int) -> None:
        """Finishes a file. After the rename to READY nothing is made again: a reader may have moved a file away
        already."""
        part = self.part(layout, number)
        ready = part.with_suffix(READY)
        if part.exists():
            for directory in self._write_tables(part, layout, number):
                sync_directory(directory)
            part.rename(ready)
            sync_directory(layout.directory)
        _reveal(layout, number)
        ready.unlink()

    def _write_tables(self, part: Path, layout: Layout, number: int) -> set[Path]:
        """Returns the directories of the tables."""
        counts: dict[tuple[int, int], int] = {}  # by what a directory is, whatever it is called
        directories: set[Path] = set()
        with pa.memory_map(str(part)) as source:
            for schema, offsets in _streams(source):
                directory = layout.directory / directory_name(
                    *(schema.metadata[key].decode() for key in (SCHEMA_NAME, TABLE_NAME))
                )
                if directory not in directories:
                    directory.mkdir(mode=0o700, exist_ok=True)
                    directories.add(directory)
                there = directory.stat()
                count = counts[there.st_dev, there.st_ino] = counts.get((there.st_dev, there.st_ino), 0) + 1
                again = f"-{count}" if count > 1 else ""
                path = directory / f".{layout.name(number, again + SUFFIX)}{PART}"
                _write(path, schema, _batches(source, offsets), self.compression)
        sync_directory(layout.directory)
        return directories


def _streams(source: pa.MemoryMappedFile) -> list[tuple[pa.Schema, list[int]]]:
    """Returns each schema, and where its streams begin."""
    found: dict[bytes, tuple[pa.Schema, list[int]]] = {}  # by schema: as objects, they are equal when their metadata is not
    size = source.size()
    while (start := source.tell()) < size:
        with pa.ipc.open_stream(source) as stream:
            found.setdefault(stream.schema.serialize().to_pybytes(), (stream.schema, []))[1].append(start)
            for _ in stream:
                pass
    return list(found.values())


def _batches(source: pa.MemoryMappedFile, offsets: list[int]) -> Iterator[pa.RecordBatch]:
    for offset in offsets:
        source.seek(offset)
        with pa.ipc.open_stream(source) as stream:
            yield from stream


def _write(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], compression: str) -> None:
    from pyarrow import parquet  # here, because tasks import this module too and never write Parquet

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as output:
        with parquet.ParquetWriter(output, schema, compression=compression) as writer:
            for table in _row_groups(batches):
                writer.write_table(table, row_group_size=table.num_rows)
        output.flush()
        os.fsync(descriptor)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group)


def _reveal(layout: Layout, number: int) -> None:
    for path in layout.directory.glob(f"*/.{layout.name(number, '')}*{SUFFIX}{PART}"):
        path.rename(path.with_name(path.name.removeprefix(".").removesuffix(PART)))
        sync_directory(path.parent)


class Compression(enum.Enum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"

    @property
    def suffix(self) -> str:
        """The suffix of a file's name."""
        return {Compression.NONE: "", Compression.GZIP: ".gz", Compression.ZSTD: ".zst"}[self]

    def compress(self, data: bytes) -> bytes:
        """Compresses data; empty data stays empty."""
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
    form: LineEncoding

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return self._receipts((self.form.encode(message), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return self._receipts((self.form.encode_copied(rows), not rows.more_follow) for rows in copied)

    def _receipts(self, lines: Iterable[tuple[list[bytes], bool]]) -> Iterator[bytes]:
        return self.scratch.receipts(map(self.compression.compress, receipt_bodies(lines)))


@dataclass(frozen=True, slots=True)
class RowWriter:
    scratch: ScratchWriter

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return self.scratch.receipts(_pieces((list(rows_of_message(message)), True) for message in messages))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return self.scratch.receipts(_pieces(([rows_of_copy(rows)], not rows.more_follow) for rows in copied))


def _pieces(rows_of_messages: Iterable[tuple[list[pa.RecordBatch], bool]]) -> Iterator[bytes]:
    """Yields at least one piece. Each message's rows come with whether they are its last."""
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


def place_names(settings: FileSinkSettings, existing: Path) -> PlaceNames | None:
    """``existing`` is the output directory, or while that is not made the nearest one above it."""
    if settings.format != PARQUET:
        return None
    return PlaceNames(
        check="file-table-directory",
        kind="directory",
        kinds="directories",
        named=lambda _, table: directory_name(table.schema, table.name),
        alike=in_one_case if is_one_in_both_cases(existing) else str,
        why=f"the file system of {existing} does not distinguish upper and lower case",
    )


def formats_by_suffix(settings: FileSinkSettings) -> dict[str, FileFormat]:
    """Returns all formats: a worker may find files in progress of one it was started with before."""
    lines = [LineFormat(suffix + compression.suffix) for suffix in LINES.values() for compression in Compression]
    formats: list[FileFormat] = [*lines, ParquetFormat(settings.compression)]
    return {file_format.suffix: file_format for file_format in formats}


def suffix_of(settings: FileSinkSettings) -> str:
    if settings.format == PARQUET:
        return SUFFIX
    return LINES[LineEncoding.of(settings.lines, "").shape] + Compression(settings.compression).suffix


def new_writer(settings: FileSinkSettings, group: str, scratch: ScratchWriter) -> PartitionWriter:
    if settings.format == PARQUET:
        return RowWriter(scratch)
    return LineWriter(scratch, Compression(settings.compression), LineEncoding.of(settings.lines, group))
