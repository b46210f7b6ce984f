"""Fixtures of a worker's tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import NatsServer
from tests.servers.program import REPOSITORY
from tests.worker.stage import Stage


@pytest.fixture
def stage(
    nats_server: NatsServer, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, spark_environment: None
) -> Iterator[Stage]:
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    caplog.set_level(logging.INFO)
    made = Stage(nats_server, group, tmp_path / "changes.db", caplog)
    yield made
    made.close()
