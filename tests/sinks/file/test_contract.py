"""The contract of sinks, kept by the file sink in each of its formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sinks.contract import SinkContract, followed_accounts
from tests.sinks.file import output
from tests.sinks.test_contract import counting_events
from worker.sinks.file import FileSink


class LineDestination:
    """What readers may rely on: finished files, and of the one in progress what the position file counts."""

    is_exactly_once = True

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
    @pytest.fixture(params=["none", "gzip", "zstd"])
    def destination(self, tmp_path: Path, request: pytest.FixtureRequest) -> LineDestination:
        return LineDestination(tmp_path / "out", request.param)
