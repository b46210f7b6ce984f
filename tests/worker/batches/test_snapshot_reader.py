"""Reading ranges of a real snapshot stream, where subjects interleave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.message import Chunk
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.batches.broker_connection import OwnConnection
from pgsluice.worker.batches.snapshot_reader import CopyProgress, SnapshotReader
from tests.servers import NatsServer
from tests.worker.published_copy import LINES, ORDERS, SETTINGS, CopyPublisher, copy_publisher

Script = Callable[[CopyPublisher], Awaitable[None]]


@pytest.fixture
def publish(nats_server: NatsServer, group: str) -> Callable[[Script], None]:
    """Runs a script of messages."""

    def run(script: Script) -> None:
        async def publish_all() -> None:
            async with connected(nats_server.settings(), "test") as client:
                await script(await copy_publisher(client, group))

        asyncio.run(publish_all())

    return run


@pytest.fixture
def reader(nats_server: NatsServer, group: str) -> Iterator[SnapshotReader]:
    connection = OwnConnection(nats_server.settings(), group)
    yield SnapshotReader(connection)
    connection.close()


def bodies(reader: SnapshotReader, first: int, last: int) -> list[tuple[int, bytes]]:
    return [(body.sequence, body.data) for body in reader.bodies(first, last)]


def test_a_range_yields_its_bodies_with_their_headers(publish: Callable[[Script], None], reader: SnapshotReader) -> None:
    async def script(messages: CopyPublisher) -> None:
        await messages.begin(ORDERS)
        await messages.rows(ORDERS, b"1")
        await messages.rows(LINES, b"2")
        await messages.rows(ORDERS, b"3")

    publish(script)
    assert bodies(reader, 1, 4) == [(1, b"begin"), (2, b"1"), (3, b"2"), (4, b"3")]
    assert bodies(reader, 2, 3) == [(2, b"1"), (3, b"2")]
    (body,) = reader.bodies(3, 3)
    assert (body.headers.oid, body.headers.rows, body.headers.is_begin) == (LINES, 5, False)


def test_chunks_are_joined_across_other_subjects_and_belong_to_the_range_of_their_last(
    publish: Callable[[Script], None], reader: SnapshotReader
) -> None:
    async def script(messages: CopyPublisher) -> None:
        await messages.rows(ORDERS, b"a")
        await messages.rows(ORDERS, b"b1", Chunk(1, 3))
        await messages.rows(LINES, b"c1", Chunk(1, 2))
        await messages.rows(ORDERS, b"b2", Chunk(2, 3))
        await messages.rows(ORDERS, b"x", range_number=2)
        await messages.rows(LINES, b"c2", Chunk(2, 2))
        await messages.rows(ORDERS, b"b3", Chunk(3, 3))
        await messages.rows(ORDERS, b"d")

    publish(script)
    assert bodies(reader, 1, 8) == [(1, b"a"), (5, b"x"), (6, b"c1c2"), (7, b"b1b2b3"), (8, b"d")]
    assert bodies(reader, 2, 4) == []
    assert bodies(reader, 7, 7) == [(7, b"b1b2b3")]
    assert [body for first, last in ((1, 3), (4, 6), (7, 8)) for body in bodies(reader, first, last)] == bodies(reader, 1, 8)


def test_a_body_that_was_never_completed_is_in_no_range(publish: Callable[[Script], None], reader: SnapshotReader) -> None:
    async def script(messages: CopyPublisher) -> None:
        await messages.rows(ORDERS, b"1", Chunk(1, 3))
        await messages.rows(ORDERS, b"2", Chunk(2, 3))
        await messages.rows(LINES, b"a")

    publish(script)
    assert bodies(reader, 1, 3) == [(3, b"a")]
    assert bodies(reader, 1, 2) == []


def test_large_bodies_arrive_whole(publish: Callable[[Script], None], reader: SnapshotReader) -> None:
    pieces = [bytes([number]) * 900_000 for number in range(1, 8)]

    async def script(messages: CopyPublisher) -> None:
        for index, piece in enumerate(pieces, start=1):
            await messages.rows(ORDERS, piece, Chunk(index, len(pieces)))
            await messages.rows(LINES, piece)

    publish(script)
    assert bodies(reader, 13, 14) == [(13, b"".join(pieces)), (14, pieces[-1])]


def test_a_chunk_that_is_gone_is_an_error(
    publish: Callable[[Script], None], reader: SnapshotReader, nats_server: NatsServer, group: str
) -> None:
    async def script(messages: CopyPublisher) -> None:
        await messages.rows(ORDERS, b"1", Chunk(1, 2))
        await messages.rows(ORDERS, b"2", Chunk(2, 2))

    publish(script)

    async def purge() -> None:
        async with connected(nats_server.settings(), "test") as client:
            await SnapshotStream(client, GroupNames(group)).purge_up_to(1)

    asyncio.run(purge())
    with pytest.raises(TerminalError, match="message 1 of the snapshot stream is gone"):
        bodies(reader, 2, 2)
    with pytest.raises(TerminalError, match="messages 1 to 1"):
        bodies(reader, 1, 2)


def test_the_first_fence_is_the_first_begin_of_a_later_attempt(publish: Callable[[Script], None], reader: SnapshotReader) -> None:
    async def script(messages: CopyPublisher) -> None:
        await messages.begin(ORDERS)
        await messages.rows(ORDERS, b"1")
        await messages.begin(LINES)
        await messages.begin(ORDERS, attempt=2)
        await messages.rows(ORDERS, b"1", range_number=2)
        await messages.begin(LINES, attempt=3)

    publish(script)
    assert [reader.first_fence(first, last) for first, last in ((1, 6), (1, 4), (1, 3), (4, 4), (5, 6), (5, 5))] == [
        4,
        4,
        None,
        4,
        6,
        None,
    ]


def test_the_progress_of_a_copy_is_the_end_of_the_stream_until_the_ledger_says_that_it_is_finished(
    publish: Callable[[Script], None], reader: SnapshotReader, nats_server: NatsServer, group: str
) -> None:
    record = SnapshotRecord("first", "0/1", CopyState.RUNNING, CopyMode.COPY, "2026-01-31", "", 0, "1", "shop", "")
    finished = replace(record, state=CopyState.FINISHED, last_sequence=1)

    async def store(snapshot: SnapshotRecord | None) -> None:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(group))
            await bucket.ensure(SETTINGS)
            if snapshot is not None:
                await Ledger(bucket).store_snapshot(snapshot)

    async def script(messages: CopyPublisher) -> None:
        await messages.begin(ORDERS)
        await messages.rows(ORDERS, b"1")

    asyncio.run(store(None))
    assert reader.progress() is None
    asyncio.run(store(record))
    assert reader.progress() == CopyProgress(0, is_finished=False)
    publish(script)
    assert reader.progress() == CopyProgress(2, is_finished=False)
    asyncio.run(store(finished))
    assert reader.progress() == CopyProgress(1, is_finished=True)
