"""The options of the file sink."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.lines.options import FORMAT, LineSettings, foreign_format_problems
from pgsluice.worker.sinks.sink_registry import SinkKind


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _usual_compression(values: Values) -> str:
    return "zstd" if values.text("format") == "parquet" else "none"


@settings
class FileSinkSettings:
    """``format`` is "parquet" or a shape of ``lines``, ``compression`` "none", "gzip" or "zstd". A file in progress is finished
    when it holds ``rotate_bytes`` or is ``rotate_age_s`` old."""

    lines: LineSettings = part(LineSettings)
    directory: str = read(
        Option(
            "file-output-dir",
            Kind.TEXT,
            "Output directory of the file sink; created if missing",
            "/var/lib/pgsluice/out",
            required=True,
            convert=_absolute,
        )
    )
    format: str = read(FORMAT)
    compression: str = read(
        Option(
            "file-compression",
            Kind.TEXT,
            "Compression of the files (default: none for JSON lines, zstd for Parquet)",
            "zstd",
            choices=("none", "gzip", "zstd"),
        ),
        otherwise=_usual_compression,
    )
    rotate_bytes: int = read(
        Option(
            "file-rotate-bytes",
            Kind.SIZE,
            "Size at which a file is finished; for Parquet, of the rows before encoding",
            "1GB",
            "100MB",
            minimum=1,
        )
    )
    rotate_age_s: float = read(
        Option(
            "file-rotate-age", Kind.DURATION, "Time after its first change at which a file is finished", "15m", "1h", minimum=1
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        return foreign_format_problems(values, own="parquet")


SINK = SinkKind(
    settings=FileSinkSettings,
    sink="pgsluice.worker.sinks.file.sink:FileSink",
    findings="pgsluice.worker.sinks.file.findings:find",
    summary="Write the changes to files: JSON lines or Parquet.",
    help="Write the changes to files in a directory, in commit order and exactly once, as JSON lines or Parquet.",
)
