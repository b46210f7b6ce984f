"""The replicator's record in the state bucket, which says what may be confirmed."""

from __future__ import annotations

from typing import Any

from pgsluice.replicator.progress import Progress, PublishedCounts, Recorder
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN
from tests.servers import NatsServer


class BusyBucket(StateBucket):
    """While it writes, the source says that it has nothing below 0/384."""

    progress: Progress

    async def put(self, key: str, value: Any) -> int:
        self.progress.caught_up(LSN(900))
        return await super().put(key, value)


async def test_what_comes_while_a_record_is_written_is_confirmed_by_the_next_one(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        bucket, progress = BusyBucket(client, GroupNames(group)), Progress(LSN(10), sequence=0)
        await bucket.make(1)
        bucket.progress = progress
        recorder = Recorder(bucket, "then", progress, PublishedCounts())
        progress.caught_up(LSN(500))
        await recorder.write()
        assert (progress.confirmed, progress.recordable) == (500, 900)
        await recorder.write()
        assert progress.confirmed == 900
