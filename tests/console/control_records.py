"""Records of the control bucket as somebody else writes them."""

from __future__ import annotations

import asyncio

from pgsluice.console.documents.control_bucket import CONTROL_BUCKET
from pgsluice.shared.broker.connection import connected
from tests.servers import NatsServer


def write_record(nats: NatsServer, key: str, value: bytes | None) -> None:
    """What is no record of ours; None removes it."""

    async def write() -> None:
        async with connected(nats.settings(), "test") as client:
            bucket = await client.jetstream().key_value(CONTROL_BUCKET)
            await (bucket.purge(key) if value is None else bucket.put(key, value))

    asyncio.run(write())
