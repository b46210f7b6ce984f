"""A receiver, and a stage of sinks that post to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.worker.sinks.subscriptions import subscription_book
from tests.servers import NatsServer
from tests.servers.http_server import HttpServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.subscriptions.subscribed import Stage


@pytest.fixture
def receiver() -> Iterator[HttpServer]:
    with HttpServer() as receiver:
        yield receiver


@pytest.fixture
def stage(nats_server: NatsServer, group: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Its sinks see at once what people ask for."""
    monkeypatch.setattr(subscription_book, "LOOK_INTERVAL_S", 0.05)
    ensure_bucket(nats_server.settings(), group)
    stage = Stage(nats_server.settings(), group)
    yield stage
    stage.close()
