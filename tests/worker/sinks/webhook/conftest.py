"""A receiver, and sinks that post to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.worker.sinks.webhook.sink import WebhookSink
from tests.servers import NatsServer
from tests.servers.http_server import HttpServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.webhook.sinks import NewSink, new_sink


@pytest.fixture
def nats(nats_server: NatsServer, group: str) -> NatsSettings:
    ensure_bucket(nats_server.settings(), group)
    return nats_server.settings()


@pytest.fixture
def receiver() -> Iterator[HttpServer]:
    with HttpServer() as receiver:
        yield receiver


@pytest.fixture
def open_sink(nats: NatsSettings, group: str, receiver: HttpServer) -> Iterator[NewSink]:
    """Makes sinks that post to ``receiver``, or to the URL given, and are open."""
    sinks = []

    def open_one(to: HttpServer | str = receiver, **changed: Any) -> WebhookSink:
        sinks.append(new_sink(nats, group, to, **changed))
        sinks[-1].open()
        return sinks[-1]

    yield open_one
    for sink in sinks:
        sink.close()
