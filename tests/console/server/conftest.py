"""A server that tests of one module share, and the bucket behind servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.shared.broker.connection import connected
from tests.console.server.served import Served
from tests.servers import NatsServer


@pytest.fixture(scope="module")
def served(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(nats_server.url, tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
async def bucket(nats_server: NatsServer) -> AsyncIterator[ControlBucket]:
    async with connected(nats_server.settings(), "test") as client:
        made = ControlBucket(client)
        await made.make(1)
        yield made
