"""The stream and the bucket against a real NATS server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest
import pytest_asyncio
import uvloop
from nats.aio.client import Client

from pgsluice.shared.broker import streams
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StoredMessage
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from tests.logged import fields_of
from tests.servers import NatsServer
from tests.waiting import wait_until_async

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 26, compression="none", retention_s=3600)


@pytest_asyncio.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with connected(nats_server.settings(), "test") as client:
        yield client


@pytest.fixture
def stream(client: Client, group: str) -> ChangeStream:
    return ChangeStream(client, GroupNames(group))


async def test_a_stream_that_does_not_exist_has_no_state_and_no_last_message(stream: ChangeStream) -> None:
    assert await stream.state() is None
    assert await stream.last_message() is None


async def test_a_stream_keeps_its_identity_through_an_update_and_a_crash_of_the_server(group: str) -> None:
    with NatsServer() as server:
        async with connected(server.settings(), "test") as client:
            stream = ChangeStream(client, GroupNames(group))
            made = await stream.ensure(SETTINGS)
            updated = await stream.ensure(replace(SETTINGS, max_bytes=1 << 27))
            assert (updated.created, updated.max_bytes) == (made.created, 1 << 27)
        server.kill()
        server.start()
        async with connected(server.settings(), "test") as client:
            state = await ChangeStream(client, GroupNames(group)).state()
            assert state is not None
            assert state.created == made.created


async def test_the_compression_of_a_stream_changes_in_both_directions_and_its_messages_stay(
    group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with NatsServer() as server:
        names, stored = GroupNames(group), []
        for compression, by_jetstream in (("none", "none"), ("s2", "s2"), ("zstd", "none"), ("s2", "s2"), ("none", "none")):
            async with connected(server.settings(), "test") as client:
                stream, letters = ChangeStream(client, names), DeadLetterStream(client, names)
                created = (await stream.ensure(replace(SETTINGS, compression=compression))).created
                await letters.ensure_like(stream.name)
                for each in (stream, letters):
                    assert (await stream.configuration_of(each.name)).compression == by_jetstream
                await letters.delete()
                for number in range(3):
                    stored.append(f"{compression} {number} ".encode() * 1000)
                    await client.jetstream().publish(stream.subject, stored[-1])
                assert [message.data for message in await stream.fetch(1, 100, 1 << 30)] == stored
            server.kill()
            server.start()
        async with connected(server.settings(), "test") as client:
            stream = ChangeStream(client, names)
            assert [message.data for message in await stream.fetch(1, 100, 1 << 30)] == stored
            state = await stream.state()
            assert state is not None
            assert state.created == created
    told = [fields_of(record) for record in caplog.records if "from its next start on" in record.message]
    assert [fields["compression"] for fields in told] == ["s2", "none", "s2", "none"]


def test_a_connection_whose_server_is_gone_is_closed_without_complaint() -> None:
    async def leave(server: NatsServer) -> bool:
        async with connected(server.settings(), "test") as client:
            server.kill()

            async def is_gone() -> bool:
                return client.is_reconnecting

            await wait_until_async(is_gone, what="the client sees that the server is gone")
            await client.publish("never.sent", b"x" * 1024)
        return client.is_closed

    with NatsServer() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(leave(server))


async def test_a_stream_that_was_made_again_has_another_identity(stream: ChangeStream) -> None:
    first = await stream.ensure(SETTINGS)
    await stream.delete()
    await stream.delete()
    assert (await stream.ensure(SETTINGS)).created != first.created


async def test_fetching_ends_at_the_limits_and_at_the_end(client: Client, stream: ChangeStream) -> None:
    await stream.ensure(SETTINGS)
    for number in range(6):
        await client.jetstream().publish(stream.subject, b"%d" % number * 1000)
    assert [message.sequence for message in await stream.fetch(2, 3, 1 << 20)] == [2, 3, 4]
    assert [message.sequence for message in await stream.fetch(2, 100, 2500)][:2] == [2, 3]
    assert [message.sequence for message in await stream.fetch(5, 100, 1 << 20)] == [5, 6]
    assert await stream.fetch(7, 100, 1 << 20) == []


async def test_a_fetch_that_is_not_answered_says_so(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REQUEST_TIMEOUT_S", 0.3)
    with NatsServer() as server:
        async with connected(server.settings(), "test") as client:
            stream = ChangeStream(client, GroupNames(group))
            await stream.ensure(SETTINGS)
            server.pause()
            try:
                with pytest.raises(TransientError, match="does not answer"):
                    await stream.fetch(1, 10, 1 << 20)
            finally:
                server.resume()


async def test_purging_removes_everything_up_to_a_sequence(client: Client, stream: ChangeStream) -> None:
    await stream.ensure(SETTINGS)
    for _ in range(4):
        await client.jetstream().publish(stream.subject, b"x")
    await stream.purge_up_to(3)
    state = await stream.state()
    assert state is not None
    assert (state.first_sequence, state.last_sequence, state.messages) == (4, 4, 1)


async def test_purging_a_subject_leaves_the_others_and_purging_up_to_nothing_leaves_all(client: Client, group: str) -> None:
    names = GroupNames(group)
    stream = SnapshotStream(client, names)
    await stream.ensure(SETTINGS)
    first, second = (names.snapshot_range_subject("s", 1, number) for number in (1, 2))
    for subject in (first, second, first, first):
        await client.jetstream().publish(subject, b"x")
    await stream.purge_up_to(0)
    await stream.purge_up_to(0, first)
    assert [message.sequence for message in await stream.fetch(1, 10, 1000)] == [1, 2, 3, 4]
    await stream.purge_up_to(3, first)
    assert [message.sequence for message in await stream.fetch(1, 10, 1000)] == [2, 4]


async def test_of_two_writers_of_a_key_only_one_moves_it(client: Client, group: str) -> None:
    bucket = StateBucket(client, GroupNames(group))
    await bucket.ensure(SETTINGS)
    revision = await bucket.create("key", {"n": 1})
    assert revision is not None
    assert await bucket.create("key", {"n": 2}) is None
    assert await bucket.update("key", {"n": 3}, revision) is not None
    assert await bucket.update("key", {"n": 4}, revision) is None
    entry = await bucket.get("key")
    assert entry is not None
    assert orjson.loads(entry.value) == {"n": 3}


async def test_a_deleted_key_is_gone_and_can_be_made_again(client: Client, group: str) -> None:
    bucket = StateBucket(client, GroupNames(group))
    await bucket.ensure(SETTINGS)
    await bucket.put("key", {})
    await bucket.delete("key")
    assert await bucket.get("key") is None
    assert await bucket.create("key", {}) is not None


async def test_a_bucket_that_does_not_exist_is_named_with_the_remedy(client: Client, group: str) -> None:
    bucket = StateBucket(client, GroupNames(group))
    assert not await bucket.exists()
    with pytest.raises(TerminalError, match="start the group's replicator first"):
        await bucket.get("key")


async def test_a_key_is_listed_whenever_it_is_there_also_while_it_is_replaced(client: Client, group: str) -> None:
    bucket = StateBucket(client, GroupNames(group))
    await bucket.ensure(SETTINGS)
    assert await bucket.keys() == []
    for key in ("a", "b"):
        await bucket.put(key, {})
    stop = asyncio.Event()

    async def replace_without_end() -> None:
        while not stop.is_set():
            await asyncio.gather(*(bucket.put("a", {}) for _ in range(8)))

    writer = asyncio.create_task(replace_without_end())
    listings = [await bucket.keys() for _ in range(300)]
    stop.set()
    await writer
    assert all(listing == ["a", "b"] for listing in listings)


class RemovedWhileItIsRead(DeadLetterStream):
    async def next_message_on(self, subject: str, sequence: int) -> StoredMessage | None:
        found = await super().next_message_on(subject, sequence)
        await self.delete()
        return found


async def test_a_dead_letter_stream_that_is_removed_while_it_is_read_has_no_letters(client: Client, group: str) -> None:
    """A part of it would have letters without the requests to replay them, which look as if they were carried out."""
    names = GroupNames(group)
    await ChangeStream(client, names).ensure(SETTINGS)
    stream = RemovedWhileItIsRead(client, names)
    await stream.ensure_like(names.changes_stream)
    letter = DeadLetter("w", Position(LSN(1), 1), "public.t", "too long", "now", 1, "", 1, b"")
    await stream.publish(letter)
    await stream.ask(letter)
    assert await stream.letters() == []
    assert await stream.state() is None
