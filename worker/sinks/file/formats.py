"""Which formats there are, and which one the settings ask for."""

from __future__ import annotations

from shared.settings import FileSinkSettings
from worker.sinks.file import parquet
from worker.sinks.file.compression import Compression
from worker.sinks.file.layout import FileFormat, LineFormat
from worker.sinks.file.line_writer import LineWriter
from worker.sinks.file.row_writer import RowWriter
from worker.sinks.file.scratch import ScratchWriter
from worker.sinks.line_shape import LineShape
from worker.sinks.sink import PartitionWriter

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
