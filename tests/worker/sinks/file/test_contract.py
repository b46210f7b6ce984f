"""The contract of sinks, kept by the file sink: lines as they are, lines in compressed frames, and Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgsluice.testing import Promise
from pgsluice.testing.tried_batches import counting_events, followed_accounts
from pgsluice.worker.sinks.file.sink import FileSink
from tests.worker.sinks.contract import EXACTLY_ONCE, SinkContract
from tests.worker.sinks.file import output


class LineDestination:
    """What readers may rely on: finished files, and of the one in progress what the position file counts."""

    def __init__(self, directory: Path, compression: str) -> None:
        self._directory = directory
        self._compression = compression

    def new_sink(self) -> FileSink:
        return output.new_sink(self._directory, compression=self._compression, rotate_bytes=200_000)

    def delivered(self) -> list[int]:
        return counting_events(output.lines(self._directory))

    def accounts(self) -> dict[int, str]:
        return followed_accounts(output.lines(self._directory))


class TestLines(SinkContract):
    kind = "file"
    promises = EXACTLY_ONCE | {Promise.CATCH_UP}

    @pytest.fixture(params=["none", "zstd"])  # gzip's members are appended as zstd's frames are, and read in test_sink
    def destination(self, tmp_path: Path, request: pytest.FixtureRequest) -> LineDestination:
        return LineDestination(tmp_path / "out", request.param)


class ParquetDestination:
    """Finished files, which is all there is: every batch fills one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def new_sink(self) -> FileSink:
        return output.new_sink(self._directory, file_format="parquet", compression="zstd", rotate_bytes=1)

    def delivered(self) -> list[int]:
        rows = output.parquet_rows(self._directory, "public.events")
        begun_anew = [index for index, row in enumerate(rows) if row["_operation"] == "RESTART"]
        counting = rows[begun_anew[-1] + 1 :] if begun_anew else rows
        return [row["id"] for row in counting]

    def accounts(self) -> dict[int, str]:
        notes: dict[int, str] = {}
        for row in output.parquet_rows(self._directory, "public.accounts"):
            notes.pop(json.loads(row["_before"])["id"] if row["_before"] else row["id"], None)
            if row["_operation"] != "DELETE":
                notes[row["id"]] = row["note"]
        return notes


class TestParquet(SinkContract):
    kind = "file"
    promises = EXACTLY_ONCE | {Promise.CATCH_UP}

    @pytest.fixture
    def destination(self, tmp_path: Path) -> ParquetDestination:
        return ParquetDestination(tmp_path / "out")
