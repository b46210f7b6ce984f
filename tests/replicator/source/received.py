"""What a walsender sends, one message after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pgsluice.replicator.source.copy_data import message_end
from pgsluice.replicator.source.walsender import WalSender


async def messages(walsender: WalSender) -> AsyncIterator[bytes]:
    """For ever; raises why the stream ended. What arrived behind a message that the caller stops at is lost."""
    while True:
        data = walsender.stream.receive()
        if data is None:
            await walsender.wait_readable()
            continue
        start = 0
        while (end := message_end(data, start)) >= 0:
            yield data[start:end]
            start = end
        walsender.stream.keep(data[start:])
