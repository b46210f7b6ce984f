"""A directory, and a sink that is open there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.worker.sinks.file.sink import FileSink
from tests.worker.sinks.file.output import new_sink


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sink(directory: Path) -> Iterator[FileSink]:
    sink = new_sink(directory)
    sink.open()
    yield sink
    sink.close()
