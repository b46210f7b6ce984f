"""Reading ranges of a real snapshot stream, where subjects interleave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.settings import StreamSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.message import Chunk
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER, SnapshotHeaders
from pgsluice.worker.batches.broker_connection import OwnConnection
from pgsluice.worker.batches.snapshot_reader import CopyProgress, SnapshotReader
from tests.servers import NatsServer

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 28, retention_s=60)
ORDERS, LINES = 11, 12


class Publisher:
    """Publishes as the copy's tasks do: each message names the one before it on its subject."""

    def __init__(self, names: GroupNames, publish: Callable[[str, bytes, dict[str, str]], Awaitable[int]]) -> None:
        self._names = names
        self._publish = publish
        self._last: dict[str, tuple[int, int]] = {}

    async def begin(self, oid: int, attempt: int = 1) -> int:
        headers = SnapshotHeaders("first", oid, attempt, None, 1, 0, 0, 0, False)
        return await self._send(self._names.snapshot_begin_subject(f"first{attempt}", oid), b"begin", headers)

    async def rows(self, oid: int, data: bytes, chunk: Chunk | None = None, *, range_number: int = 1) -> int:
        headers = SnapshotHeaders("first", oid, 1, range_number, 1, 5, 5, len(data), False, chunk or Chunk(1, 1))
        return await self._send(self._names.snapshot_range_subject("first", oid, range_number), data, headers)

    async def _send(self, subject: str, data: bytes, headers: SnapshotHeaders) -> int:
        number, sequence = self._last.get(subject, (0, 0))
        fenced = replace(headers, number=number + 1).encode() | {EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER: str(sequence)}
        self._last[subject] = (number + 1, await self._publish(subject, data, fenced))
        return self._last[subject][1]


@asynccontextmanager
async def publisher(server: NatsServer, group: str) -> AsyncIterator[Publisher]:
    client = await connect(server.settings(), "test")
    names = GroupNames(group)
    await SnapshotStream(client, names).ensure(SETTINGS)

    async def publish(subject: str, data: bytes, headers: dict[str, str]) -> int:
        return (await client.jetstream().publish(subject, data, headers=headers)).seq

    try:
        yield Publisher(names, publish)
    finally:
        await client.close()


Script = Callable[[Publisher], Awaitable[None]]


@pytest.fixture
def publish(nats_server: NatsServer, group: str) -> Callable[[Script], None]:
    """Runs a script of messages."""

    def run(script: Script) -> None:
        async def publish_all() -> None:
            async with publisher(nats_server, group) as messages:
                await script(messages)

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
    async def script(messages: Publisher) -> None:
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
    async def script(messages: Publisher) -> None:
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
    async def script(messages: Publisher) -> None:
        await messages.rows(ORDERS, b"1", Chunk(1, 3))
        await messages.rows(ORDERS, b"2", Chunk(2, 3))
        await messages.rows(LINES, b"a")

    publish(script)
    assert bodies(reader, 1, 3) == [(3, b"a")]
    assert bodies(reader, 1, 2) == []


def test_large_bodies_arrive_whole(publish: Callable[[Script], None], reader: SnapshotReader) -> None:
    pieces = [bytes([number]) * 900_000 for number in range(1, 8)]

    async def script(messages: Publisher) -> None:
        for index, piece in enumerate(pieces, start=1):
            await messages.rows(ORDERS, piece, Chunk(index, len(pieces)))
            await messages.rows(LINES, piece)

    publish(script)
    assert bodies(reader, 13, 14) == [(13, b"".join(pieces)), (14, pieces[-1])]


def test_a_chunk_that_is_gone_is_an_error(
    publish: Callable[[Script], None], reader: SnapshotReader, nats_server: NatsServer, group: str
) -> None:
    async def script(messages: Publisher) -> None:
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


def test_the_first_restart_is_the_first_begin_of_a_later_attempt(
    publish: Callable[[Script], None], reader: SnapshotReader
) -> None:
    async def script(messages: Publisher) -> None:
        await messages.begin(ORDERS)
        await messages.rows(ORDERS, b"1")
        await messages.begin(LINES)
        await messages.begin(ORDERS, attempt=2)
        await messages.rows(ORDERS, b"1", range_number=2)
        await messages.begin(LINES, attempt=3)

    publish(script)
    assert [reader.first_restart(first, last) for first, last in ((1, 6), (1, 4), (1, 3), (4, 4), (5, 6), (5, 5))] == [
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

    async def script(messages: Publisher) -> None:
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
