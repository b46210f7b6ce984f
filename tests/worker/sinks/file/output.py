"""The directory of a file sink, as its readers see it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgsluice.testing.tried_batches import batch
from pgsluice.worker.sinks.file.options import FileSinkSettings
from pgsluice.worker.sinks.file.sink import FileSink
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import worker_settings

WORKER = worker_settings("orders", name="file")
PREFIX = "orders.file."
STORED_NOTE = b"x" * 50_000
"""Two of them are more than a receipt holds itself, so tasks leave them in the scratch directory."""
LARGE = batch([2, 3], [4, 5], note=STORED_NOTE)
"""Finishes two files and begins a third, where four notes fill one."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def file_settings(
    directory: Path,
    *,
    file_format: str = "json",
    compression: str = "none",
    rotate_bytes: int = 1 << 30,
    rotate_age_s: float = 3600.0,
    transactions: bool = False,
    column_ids: bool = False,
) -> FileSinkSettings:
    shape = "json" if file_format == "parquet" else file_format
    lines = line_settings(transactions=transactions, shape=shape, column_ids=column_ids)
    return FileSinkSettings(lines, str(directory), file_format, compression, rotate_bytes, rotate_age_s)


def new_sink(directory: Path, **settings: Any) -> FileSink:
    return FileSink(WORKER, file_settings(directory, **settings))


def position_of(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((directory / f"{PREFIX}position").read_bytes())
    return record


def finished_files(directory: Path) -> list[Path]:
    """JSON lines that no one touches any more, in order."""
    return sorted(path for path in directory.glob(f"{PREFIX}*.jsonl*") if path.suffix != ".part")


def lines(directory: Path) -> list[dict[str, Any]]:
    """What counts: the finished files, and of the file in progress as much as the position file says."""
    return [json.loads(line) for data in _contents(directory) for line in _whole_lines(data)]


def ids(directory: Path) -> list[int]:
    return [line["after"]["id"] for line in lines(directory)]


def names(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*")}


def _contents(directory: Path) -> Iterator[bytes]:
    for path in finished_files(directory):
        yield decompressed(path.name, path.read_bytes())
    position = position_of(directory)
    if position["bytes"]:
        name = position["file"]
        yield decompressed(name, (directory / name).read_bytes()[: position["bytes"]])


def _whole_lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    assert rest == b"", "half a line"
    return whole


def decompressed(name: str, data: bytes) -> bytes:
    name = name.removesuffix(".part")
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".zst"):
        plain: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
        return plain
    return data


def parquet_rows(directory: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table's finished files, in order."""
    return [row for path in sorted((directory / table).glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
