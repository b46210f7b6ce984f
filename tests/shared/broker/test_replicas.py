"""Three nats-servers: whatever was acknowledged is seen, also by whoever asks a follower that lags."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson
from nats.aio.client import Client

from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders
from pgsluice.worker.batches.ownership import OwnershipLedger
from tests.servers import NatsCluster, NatsServer
from tests.waiting import wait_until_async

SETTINGS = StreamSettings(replicas=3, placement_tags=(), max_bytes=1 << 24, compression="none", retention_s=60)
ROUNDS = 5
READERS = 20
STALL_S = 0.6  # after less, nats-server catches up before it answers
BURDEN_MESSAGES = 100
BURDEN_BYTES = 20_000

T = TypeVar("T")


@dataclass(frozen=True)
class Laggard:
    """A follower of a stream, with a client of its leader and one of its own."""

    cluster: NatsCluster
    node: NatsServer
    writing: Client
    reading: Client

    async def answers(
        self, burden: Callable[[], Awaitable[Any]], write: Callable[[], Awaitable[Any]], read: Callable[[], Awaitable[T]]
    ) -> list[T]:
        """What READERS read here when the follower goes on after ``write`` was acknowledged without it."""
        await read()  # the connection is there, and what its first request needs
        with self.cluster.paused(self.node):
            await asyncio.sleep(STALL_S)
            await burden()  # so that it takes the follower a while to catch up
            await write()
            sent_before = self.reading.stats["out_msgs"]

            async def all_sent() -> bool:
                return self.reading.stats["out_msgs"] >= sent_before + READERS and not self.reading.pending_data_size

            reading = [asyncio.ensure_future(read()) for _ in range(READERS)]
            await wait_until_async(all_sent, what="requests to the follower", interval_s=0.01)
        return await asyncio.gather(*reading)


@asynccontextmanager
async def connection(cluster: NatsCluster, node: NatsServer) -> AsyncIterator[Client]:
    async with connected(cluster.settings(node), "test") as client:
        yield client


@asynccontextmanager
async def laggard_of(cluster: NatsCluster, stream: str, make: Callable[[Client], Awaitable[Any]]) -> AsyncIterator[Laggard]:
    """A follower of ``stream``, when all nodes hold what ``make`` has made of it."""
    async with connection(cluster, cluster.nodes[0]) as client:
        await make(client)
    cluster.wait_until_current(stream)
    follower, _ = cluster.followers_of(stream)
    async with connection(cluster, cluster.leader_of(stream)) as writing, connection(cluster, follower) as reading:
        yield Laggard(cluster, follower, writing, reading)


async def make_bucket(names: GroupNames, client: Client) -> None:
    await StateBucket(client, names).ensure(SETTINGS)


async def make_snapshot_stream(names: GroupNames, client: Client) -> None:
    await SnapshotStream(client, names).ensure(SETTINGS)


async def publish_burden(client: Client, subject: str) -> None:
    for _ in range(BURDEN_MESSAGES):
        await client.publish(subject, bytes(BURDEN_BYTES))


async def test_what_the_state_bucket_acknowledged_is_read_also_at_a_follower_that_lags(
    nats_cluster: NatsCluster, group: str
) -> None:
    names = GroupNames(group)
    async with laggard_of(nats_cluster, f"KV_{names.bucket}", partial(make_bucket, names)) as laggard:
        at_leader, at_follower = StateBucket(laggard.writing, names), StateBucket(laggard.reading, names)
        burden = partial(publish_burden, laggard.writing, f"$KV.{names.bucket}.burden")
        await at_leader.put("key", {"n": 0})

        async def read() -> int:
            entry = await at_follower.get("key")
            return -1 if entry is None else int(orjson.loads(entry.value)["n"])

        for n in range(1, ROUNDS + 1):
            seen = await laggard.answers(burden, partial(at_leader.put, "key", {"n": n}), read)
            assert seen == [n] * READERS


async def test_a_bucket_of_an_earlier_version_is_read_through_its_leader_too(nats_cluster: NatsCluster, group: str) -> None:
    names = GroupNames(group)

    async def make(client: Client) -> None:
        context = client.jetstream()
        await context.create_key_value(bucket=names.bucket, replicas=3, direct=True)
        information = await context.stream_info(f"KV_{names.bucket}")
        assert information.config.allow_direct
        bucket = StateBucket(client, names)
        await bucket.ensure(SETTINGS)
        await bucket.put("key", {"n": 1})

    async with laggard_of(nats_cluster, f"KV_{names.bucket}", make) as laggard:
        at_leader, at_follower = StateBucket(laggard.writing, names), StateBucket(laggard.reading, names)
        burden = partial(publish_burden, laggard.writing, f"$KV.{names.bucket}.burden")
        for n in range(2, ROUNDS + 2):
            write, read = partial(at_leader.put, "key", {"n": n}), partial(at_follower.get, "key")
            seen = await laggard.answers(burden, write, read)
            assert [entry and orjson.loads(entry.value)["n"] for entry in seen] == [n] * READERS


async def test_a_table_whose_copy_was_announced_is_the_copys_for_whoever_asks(nats_cluster: NatsCluster, group: str) -> None:
    names = GroupNames(group)
    async with laggard_of(nats_cluster, f"KV_{names.bucket}", partial(make_bucket, names)) as laggard:
        burden = partial(publish_burden, laggard.writing, f"$KV.{names.bucket}.burden")
        ledger, ownership = Ledger(StateBucket(laggard.writing, names)), OwnershipLedger(StateBucket(laggard.reading, names))
        await ledger.store_snapshot(
            SnapshotRecord("", "", CopyState.RUNNING, CopyMode.COPY_AND_STREAM, "", "", 0, "1", "shop", "then")
        )
        for n in range(1, ROUNDS + 1):
            table = TableRecord(17, "public", "t", Phase.DATA_SYNC, "", f"snapshot {n}", "0/10")
            seen = await laggard.answers(burden, partial(ledger.store_table, table), ownership.current)
            assert {owned.copies[17].snapshot for owned in seen} == {f"snapshot {n}"}


def headers(number: int, *, begin: bool = False, attempt: int = 1) -> SnapshotHeaders:
    return SnapshotHeaders("s", 17, attempt, None if begin else 1, number, 1, number, number, False)


async def test_a_range_goes_on_behind_what_was_acknowledged_also_at_a_follower_that_lags(
    nats_cluster: NatsCluster, group: str
) -> None:
    names = GroupNames(group)
    async with laggard_of(nats_cluster, names.snapshot_stream, partial(make_snapshot_stream, names)) as laggard:
        at_leader, at_follower = SnapshotStream(laggard.writing, names), SnapshotStream(laggard.reading, names)
        subject = names.snapshot_range_subject("s", 17, 1)
        burden = partial(publish_burden, laggard.writing, names.snapshot_range_subject("s", 18, 1))
        first = RangePublisher(laggard.writing, at_leader, subject, "id/")

        async def write(number: int) -> None:
            await first.publish(headers(number), b"row\n")
            await first.flush()

        async def read() -> int:
            return (await RangePublisher(laggard.reading, at_follower, subject, "id/").resume()).number

        for number in range(1, ROUNDS + 1):
            seen = await laggard.answers(burden, partial(write, number), read)
            assert seen == [number] * READERS
        await first.close()


async def test_a_table_that_begins_again_is_seen_also_at_a_follower_that_lags(nats_cluster: NatsCluster, group: str) -> None:
    names = GroupNames(group)
    async with laggard_of(nats_cluster, names.snapshot_stream, partial(make_snapshot_stream, names)) as laggard:
        at_follower = SnapshotStream(laggard.reading, names)
        burden = partial(publish_burden, laggard.writing, names.snapshot_range_subject("s", 18, 1))
        begun = 0

        async def begin_again() -> None:
            nonlocal begun
            encoded = headers(1, begin=True, attempt=2).encode()
            begun = (await laggard.writing.jetstream().publish(names.snapshot_begin_subject("s", 17), b"", headers=encoded)).seq

        async def begin_and_message() -> tuple[int, int]:
            """By subject, and by sequence."""
            begin, message = await at_follower.next_begin(begun or 1), await at_follower.message(begun or 1)
            return begin.sequence if begin else 0, message.sequence if message else 0

        for _ in range(ROUNDS):
            seen = await laggard.answers(burden, begin_again, begin_and_message)
            assert seen == [(begun, begun)] * READERS


async def test_a_dead_letter_is_known_to_whoever_asks_a_follower_that_lags(nats_cluster: NatsCluster, group: str) -> None:
    names = GroupNames(group)

    async def make(client: Client) -> None:
        await ChangeStream(client, names).ensure(SETTINGS)
        await DeadLetterStream(client, names).ensure_like(names.changes_stream)

    async with laggard_of(nats_cluster, names.dead_stream, make) as laggard:
        at_leader, at_follower = DeadLetterStream(laggard.writing, names), DeadLetterStream(laggard.reading, names)

        async def burden() -> None:
            """As many bytes in fewer messages, for each reader reads all."""
            letters = (
                DeadLetter("v", Position(LSN(n), 1), "public.t", "", "", n, "", 1, bytes(5 * BURDEN_BYTES))
                for n in range(BURDEN_MESSAGES // 5)
            )
            await asyncio.gather(*(at_leader.publish(letter) for letter in letters))

        async def read() -> int:
            return len(await at_follower.letters("w"))

        for count in range(1, ROUNDS + 1):
            letter = DeadLetter("w", Position(LSN(count), 1), "public.t", "too long", "now", count, "", 1, b"")
            seen = await laggard.answers(burden, partial(at_leader.publish, letter), read)
            assert seen == [count] * READERS
