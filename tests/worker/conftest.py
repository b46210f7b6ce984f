"""Fixtures of a worker's tests."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.borrowed_spark import borrowing, environment_restored
from tests.servers import NatsServer
from tests.servers.program import REPOSITORY
from tests.worker.stage import Stage


@pytest.fixture
def stage(nats_server: NatsServer, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    """Whose workers borrow their Spark."""
    with borrowing(), contextlib.closing(Stage(nats_server, group, tmp_path / "changes.db", caplog)) as made:
        caplog.set_level(logging.INFO)
        yield made


@pytest.fixture
def stage_with_its_own_spark(
    nats_server: NatsServer, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Stage]:
    with environment_restored(), contextlib.closing(Stage(nats_server, group, tmp_path / "changes.db", caplog)) as made:
        os.environ["PYTHONPATH"] = str(REPOSITORY)  # what tasks unpickle is here
        caplog.set_level(logging.INFO)
        yield made
