"""The state bucket of a group whose replicator does not run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.names import GroupNames


def ensure_bucket(settings: NatsSettings, group: str) -> None:
    """What a group's replicator does before any worker runs."""

    async def ensure() -> None:
        async with connected(settings, "test") as client:
            await StateBucket(client, GroupNames(group)).ensure(
                StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)
            )

    asyncio.run(ensure())


async def seal_bucket(client: Client, group: str) -> None:
    """From now on JetStream refuses every write of the group's state, for good."""
    context = client.jetstream()
    configuration = (await context.stream_info(f"KV_{GroupNames(group).bucket}")).config
    await context.update_stream(replace(configuration, sealed=True, deny_delete=True, deny_purge=True, allow_rollup_hdrs=False))
