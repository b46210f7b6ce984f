"""A receiver, and a stage of sinks that post to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import NatsServer
from tests.servers.http_server import HttpServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.subscriptions.subscribed import Stage


@pytest.fixture
def receiver() -> Iterator[HttpServer]:
    with HttpServer() as receiver:
        yield receiver


@pytest.fixture
def stage(nats_server: NatsServer, group: str) -> Iterator[Stage]:
    ensure_bucket(nats_server.settings(), group)
    stage = Stage(nats_server.settings(), group)
    yield stage
    stage.close()
