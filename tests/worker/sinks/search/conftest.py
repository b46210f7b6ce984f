"""A sink on a search server, with indexes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers import NatsServer
from tests.servers.opensearch import SearchServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.search.sinks import new_sink

OpenSink = Callable[..., SearchSink]


@pytest.fixture
def open_sink(search_server: SearchServer, nats_server: NatsServer, group: str) -> Iterator[OpenSink]:
    """Opens sinks with what a test changes in their settings; ``url`` too."""
    ensure_bucket(nats_server.settings(), group)
    opened: list[SearchSink] = []

    def open_one(url: str = "", **changed: Any) -> SearchSink:
        sink = new_sink(nats_server.settings(), group, url or search_server.url, **changed)
        sink.open()
        opened.append(sink)
        return sink

    yield open_one
    for sink in opened:
        sink.close()


@pytest.fixture
def sink(open_sink: OpenSink) -> SearchSink:
    return open_sink()
