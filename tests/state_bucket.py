"""The state bucket of a group whose replicator does not run."""

from __future__ import annotations

import asyncio

from shared.jetstream import connect
from shared.names import GroupNames
from shared.settings import NatsSettings, StreamSettings
from shared.state import StateBucket


def ensure_bucket(settings: NatsSettings, group: str) -> None:
    """What a group's replicator does before any worker runs."""

    async def ensure() -> None:
        client = await connect(settings, "test")
        await StateBucket(client, GroupNames(group)).ensure(
            StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, retention_s=60)
        )
        await client.close()

    asyncio.run(ensure())
