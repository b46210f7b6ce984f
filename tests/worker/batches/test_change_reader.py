"""Reading ranges of a real change stream, whole and chunked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import StreamSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.message import Chunk, MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.batches.broker_connection import OwnConnection
from pgsluice.worker.batches.change_reader import Body, ChangeReader
from tests.servers import NatsServer

LARGE = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 30, compression="none", retention_s=3600)


async def publish(server: NatsServer, group: str, pieces: list[tuple[bytes, Chunk]], purge: int = 0) -> None:
    async with connected(server.settings(), "test") as client:
        stream = ChangeStream(client, GroupNames(group))
        await stream.ensure(LARGE)
        total = 0
        for number, (data, chunk) in enumerate(pieces, start=1):
            total += len(data)
            position = Position(LSN(100 * number), number)
            headers = MessageHeaders(position, position, LSN(0), number if chunk.is_last else number - 1, total, chunk)
            await client.jetstream().publish(stream.subject, data, headers=headers.encode())
        if purge:
            await stream.purge_up_to(purge)


@pytest.fixture
def reader(nats_server: NatsServer, group: str) -> Iterator[ChangeReader]:
    connection = OwnConnection(nats_server.settings(), group)
    yield ChangeReader(connection)
    connection.close()


def whole(*bodies: bytes) -> list[tuple[bytes, Chunk]]:
    return [(body, Chunk(1, 1)) for body in bodies]


def chunks(*parts: bytes) -> list[tuple[bytes, Chunk]]:
    return [(part, Chunk(i, len(parts))) for i, part in enumerate(parts, start=1)]


def test_a_range_yields_its_bodies_in_order(nats_server: NatsServer, group: str, reader: ChangeReader) -> None:
    asyncio.run(publish(nats_server, group, whole(b"a", b"b", b"c", b"d")))
    assert list(reader.bodies(2, 3)) == [Body(2, 2, 2, b"b"), Body(3, 3, 3, b"c")]


def test_chunks_are_joined_and_belong_to_the_range_of_their_first(
    nats_server: NatsServer, group: str, reader: ChangeReader
) -> None:
    asyncio.run(publish(nats_server, group, [*whole(b"a"), *chunks(b"1", b"2", b"3"), *whole(b"z")]))
    assert list(reader.bodies(1, 2)) == [Body(1, 1, 1, b"a"), Body(2, 4, 2, b"123")]
    assert list(reader.bodies(3, 4)) == []
    assert list(reader.bodies(3, 5)) == [Body(5, 5, 5, b"z")]


def test_a_group_of_chunks_that_was_begun_again_is_left_out(nats_server: NatsServer, group: str, reader: ChangeReader) -> None:
    abandoned = chunks(b"1", b"2", b"3")[:2]
    asyncio.run(publish(nats_server, group, [*whole(b"a"), *abandoned, *chunks(b"1", b"2"), *whole(b"z")]))
    assert [body.data for body in reader.bodies(1, 6)] == [b"a", b"12", b"z"]
    assert [body.data for body in reader.bodies(1, 3)] == [b"a"]
    assert [body.data for body in reader.bodies(4, 6)] == [b"12", b"z"]


def test_bodies_larger_than_one_answer_arrive_whole(nats_server: NatsServer, group: str, reader: ChangeReader) -> None:
    bodies = [bytes([i]) * 900_000 for i in range(12)]
    asyncio.run(publish(nats_server, group, whole(*bodies)))
    assert [body.data for body in reader.bodies(1, 12)] == bodies


def test_removed_messages_are_an_error_not_a_jump(nats_server: NatsServer, group: str, reader: ChangeReader) -> None:
    asyncio.run(publish(nats_server, group, whole(b"a", b"b", b"c"), purge=2))
    with pytest.raises(TerminalError, match="messages 1 to 2 of"):
        list(reader.bodies(1, 3))


def test_a_message_that_the_replicator_did_not_publish_is_not_read(nats_server: NatsServer, group: str) -> None:
    asyncio.run(publish(nats_server, group, whole(b"a", b"b")))
    connection = OwnConnection(nats_server.settings(), group)
    try:
        with pytest.raises(TerminalError, match=r"message 1 of stream .* was not published by the group's replicator"):
            list(ChangeReader(connection, "7000000000000000000/pgsluice_orders/").bodies(1, 2))
    finally:
        connection.close()


def test_marks_tell_sizes_and_settled_ends(nats_server: NatsServer, group: str, reader: ChangeReader) -> None:
    asyncio.run(publish(nats_server, group, [*whole(b"abc"), *chunks(b"12", b"3")]))
    first, last = reader.mark(1), reader.peek_last()
    assert first is not None
    assert last is not None
    assert (first.settled, first.bytes_before, first.bytes_through) == (1, 0, 3)
    assert (last.sequence, last.settled, last.bytes_before, last.bytes_through) == (3, 3, 5, 6)
    assert reader.mark(4) is None
