"""What the file sink is told."""

from __future__ import annotations

from pathlib import Path

from pgsluice.shared import config
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.worker.sinks.file.options import FileSinkSettings
from tests.configuration import load
from tests.worker.sinks.line_settings import line_settings


def test_settings_of_the_file_sink_hold_what_was_given(tmp_path: Path) -> None:
    lines = config.make(FileSinkSettings, load(tmp_path, "file-output-dir: out\n", WorkerSettings, FileSinkSettings))
    assert lines == FileSinkSettings(
        lines=line_settings(),
        directory=str(Path.cwd() / "out"),
        format="json",
        compression="none",
        rotate_bytes=100_000_000,
        rotate_age_s=3600.0,
    )
    values = load(tmp_path, "file-output-dir: ~/out\nformat: parquet\n", WorkerSettings, FileSinkSettings)
    rows = config.make(FileSinkSettings, values)
    assert (rows.directory, rows.format, rows.compression) == (str(Path.home() / "out"), "parquet", "zstd")
