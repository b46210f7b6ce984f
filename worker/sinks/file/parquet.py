"""Parquet: rows are gathered in one file in progress, which becomes a Parquet file for each table when it is full or old.

    .orders.file.0000000013.parquet.part                    in progress: Arrow streams, all tables together
    public.orders/orders.file.0000000012.parquet            finished
    public.orders/.orders.file.0000000013.parquet.part      made, and not yet for readers
    .orders.file.0000000013.parquet.ready                   all of them are made, and are being renamed

A table whose definition changed in between gets a second file, ``…13-2.parquet``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pgsluice.worker.sinks.file.output_directory import PART, READY, Layout, sync_directory
from pgsluice.worker.sinks.file.rows import SCHEMA_NAME, TABLE_NAME, directory_name

SUFFIX = ".parquet"

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Of rows in memory: what the driver holds at once. Readers work on row groups in parallel."""


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    compression: str

    @property
    def suffix(self) -> str:
        return SUFFIX

    def part(self, layout: Layout, number: int) -> Path:
        return layout.directory / f".{layout.name(number, SUFFIX)}{PART}"

    def finish(self, layout: Layout, number: int) -> None:
        """After the rename to READY nothing is made again: a reader may have taken a file away already."""
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
        """The directories of the tables."""
        counts: dict[Path, int] = {}
        with pa.memory_map(str(part)) as source:
            for schema, offsets in _streams(source):
                directory = layout.directory / directory_name(
                    *(schema.metadata[key].decode() for key in (SCHEMA_NAME, TABLE_NAME))
                )
                if directory not in counts:
                    directory.mkdir(mode=0o700, exist_ok=True)
                counts[directory] = counts.get(directory, 0) + 1
                again = f"-{counts[directory]}" if counts[directory] > 1 else ""
                path = directory / f".{layout.name(number, again + SUFFIX)}{PART}"
                _write(path, schema, _batches(source, offsets), self.compression)
        sync_directory(layout.directory)
        return set(counts)


def _streams(source: pa.MemoryMappedFile) -> list[tuple[pa.Schema, list[int]]]:
    """Each schema, and where its streams begin."""
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
