"""Three nats-servers that stall, or lose two of them: everybody waits, and goes on where they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from nats.aio.client import Client

from pgsluice.replicator import publisher as publisher_module
from pgsluice.replicator.assembler import Message
from pgsluice.replicator.progress import PublishedCounts
from pgsluice.replicator.publisher import Publisher
from pgsluice.replicator.resume import StreamEnd
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.tasks import cancel
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, connected, disconnect
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, Stream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.wire.message import ID_HEADER
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders
from tests.servers import NatsCluster, NatsServer
from tests.waiting import wait_until_async

SETTINGS = StreamSettings(replicas=3, placement_tags=(), max_bytes=1 << 24, compression="none", retention_s=60)
DUPLICATE_IN_PROCESS = "error 10158"

AnyStream = TypeVar("AnyStream", bound=Stream)


@asynccontextmanager
async def connection(cluster: NatsCluster, *nodes: NatsServer) -> AsyncIterator[Client]:
    async with connected(cluster.settings(*nodes), "test") as client:
        yield client


@asynccontextmanager
async def at_leader(cluster: NatsCluster, make: Callable[[Client], AnyStream]) -> AsyncIterator[tuple[Client, AnyStream]]:
    """A stream that all nodes hold, and a client that is connected to its leader."""
    async with connection(cluster) as client:
        stream = make(client)
        await stream.ensure(SETTINGS)
    cluster.wait_until_current(stream.name)
    async with connection(cluster, cluster.leader_of(stream.name)) as client:
        yield client, make(client)


async def test_a_message_sent_again_while_its_first_copy_is_being_stored_is_stored_once(
    nats_cluster: NatsCluster, group: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher_module, "ACK_TIMEOUT_S", 1.0)
    names = GroupNames(group)
    async with at_leader(nats_cluster, lambda client: ChangeStream(client, names)) as (client, stream):
        publisher = Publisher(
            client, stream, "17/s/", StreamEnd(0, 0, 0, LSN(0)), lambda sequence: None, Pulse(), PublishedCounts()
        )
        running = asyncio.ensure_future(publisher.run())
        with nats_cluster.paused(*nats_cluster.followers_of(stream.name)):
            position = Position(LSN(1), 1)
            await publisher.publish(Message(position, position, LSN(2), True, 1, b"body"))
            await wait_until_async(lambda: said(caplog, DUPLICATE_IN_PROCESS, running), what="a duplicate in process")
        async with asyncio.timeout(60):
            await publisher.flush()
        assert await messages_of(stream) == 1
        await cancel([running])


async def test_rows_sent_again_while_their_first_copy_is_being_stored_are_stored_once(
    nats_cluster: NatsCluster, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = GroupNames(group)
    subject = names.snapshot_range_subject("s", 17, 1)
    async with at_leader(nats_cluster, lambda client: SnapshotStream(client, names)) as (client, stream):
        publisher = RangePublisher(client, stream, subject, "id/")
        with nats_cluster.paused(*nats_cluster.followers_of(stream.name)):
            await client.publish(subject, b"row\n", headers={ID_HEADER: "id/1"})  # by an attempt before, which was killed
            await publisher.publish(SnapshotHeaders("s", 17, 1, 1, 1, 1, 1, 4, True), b"row\n")
            storing = asyncio.ensure_future(publisher.flush())
            await wait_until_async(lambda: said(caplog, "takes no rows now", storing), what="a duplicate in process")
        async with asyncio.timeout(60):
            assert await storing == 1
        assert await messages_of(stream) == 1
        await publisher.close()


async def messages_of(stream: Stream) -> int:
    state = await stream.state()
    assert state is not None
    return state.messages


async def said(caplog: pytest.LogCaptureFixture, text: str, task: asyncio.Future[Any]) -> bool:
    if task.done():
        task.result()
    return any(text in f"{record.getMessage()} {record.__dict__}" for record in caplog.records)


@pytest.mark.long
async def test_without_a_quorum_every_call_says_that_it_may_succeed_later(nats_cluster: NatsCluster, group: str) -> None:
    names = GroupNames(group)
    async with connection(nats_cluster) as client:
        await ChangeStream(client, names).ensure(SETTINGS)
        await StateBucket(client, names).ensure(SETTINGS)
    nats_cluster.wait_until_current(f"KV_{names.bucket}")
    left, *others = nats_cluster.nodes
    async with connected(nats_cluster.settings(left), "test") as client:
        bucket, stream = StateBucket(client, names), ChangeStream(client, names)
        revision = await bucket.put("key", {})

        async def connect_again() -> None:
            await disconnect(await connect(nats_cluster.settings(left), "test"))

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "put": lambda: bucket.put("key", {}),
            "update": lambda: bucket.update("key", {}, revision),
            "create": lambda: bucket.create("other", {}),
            "delete": lambda: bucket.delete("third"),
            "get": lambda: bucket.get("key"),
            "keys": bucket.keys,
            "exists": StateBucket(client, names).exists,
            "state": stream.state,
            "ensure": lambda: stream.ensure(SETTINGS),
            "message": lambda: stream.message(1),
            "last": stream.last_message,
            "connect": connect_again,
        }
        for node in others:
            node.kill()
        try:
            reasons: set[str] = set()

            async def all_said() -> bool:
                for name, outcome in zip(
                    calls, await asyncio.gather(*(call() for call in calls.values()), return_exceptions=True), strict=True
                ):
                    if isinstance(outcome, BaseException):
                        assert isinstance(outcome, TransientError), (name, outcome)
                        reasons.add(outcome.fact)
                return any("NoStreamResponseError" in reason for reason in reasons)

            await wait_until_async(all_said, deadline_s=60, what="no leader at all")
        finally:
            for node in others:
                node.start()
        nats_cluster.wait_until_ready()

        async def all_answer() -> bool:
            outcomes = await asyncio.gather(*(call() for call in calls.values()), return_exceptions=True)
            return not any(isinstance(outcome, Exception) for outcome in outcomes)

        await wait_until_async(all_answer, deadline_s=60, what="answers again")
