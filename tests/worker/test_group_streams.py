"""The group's streams as the driver sees them."""

from __future__ import annotations

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from tests.servers import NatsServer
from tests.worker.published_stream import STREAM


def test_a_group_is_there_when_its_state_bucket_is_too(nats_server: NatsServer, group: str) -> None:
    """The replicator makes a stream first; a worker that comes in between would find no bucket."""
    names, loop = GroupNames(group), EventLoopThread("test-streams")
    client = loop.run(connect(nats_server.settings(), "test"))
    try:
        for stream in (ChangeStream(client, names), SnapshotStream(client, names)):
            assert not GroupStreams(loop, client, names).exist()
            loop.run(stream.ensure(STREAM))
            assert not GroupStreams(loop, client, names).exist()
            loop.run(StateBucket(client, names).ensure(STREAM))
            assert GroupStreams(loop, client, names).exist()
            loop.run(stream.delete())
            loop.run(client.jetstream().delete_key_value(names.bucket))
    finally:
        loop.run(disconnect(client))
        loop.close()
