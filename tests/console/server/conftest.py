"""A server that tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.server.served import Served
from tests.servers import NatsServer


@pytest.fixture(scope="module")
def served(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(nats_server.url, tmp_path_factory.mktemp("served")) as server:
        yield server
