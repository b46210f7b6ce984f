"""The state bucket of a pipeline's group."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer


@pytest.fixture
async def bucket(nats_server: NatsServer, group: str) -> AsyncIterator[StateBucket]:
    async with connected(nats_server.settings(), "test") as client:
        made = StateBucket(client, GroupNames(group))
        await made.make(1)
        yield made
