"""A table is forgotten only when workers have applied all that there was of it."""

from __future__ import annotations

import pytest

from pgsluice.replicator.membership.order_execution import workers_behind
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN
from tests.servers import NatsServer

STREAM = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)


@pytest.mark.parametrize(
    ("flushed", "copied", "expected"),
    [("0/20", 5, ()), ("0/1F", 5, ("w",)), ("0/20", 4, ("w",))],
    ids=["it has all", "the stream lacks changes yet", "it lacks copied rows"],
)
async def test_a_worker_that_has_applied_the_stream_has_all_only_when_all_is_in_the_stream(
    nats_server: NatsServer, group: str, flushed: str, copied: int, expected: tuple[str, ...]
) -> None:
    async with connected(nats_server.settings(), "test") as client:
        names = GroupNames(group)
        bucket, stream = StateBucket(client, names), ChangeStream(client, names)
        await bucket.ensure(STREAM)
        state = await stream.ensure(STREAM)
        await bucket.put(REPLICATOR_KEY, ReplicatorRecord(flushed, state.created, 0))
        await bucket.put(worker_key("w"), WorkerReport(0, copied, "0/10", stream_created=state.created))
        assert await workers_behind(bucket, stream, LSN(0x20), snapshot_sequence=5) == expected
