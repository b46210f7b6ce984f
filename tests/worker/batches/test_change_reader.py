"""Reading ranges of a real change stream, whole and chunked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError, WireError
from pgsluice.shared.wire.message import Chunk, MessageHeaders, counted_bytes
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.batches.broker_connection import OwnConnection
from pgsluice.worker.batches.change_reader import Body, ChangeReader
from tests.servers import NatsServer
from tests.zstd_frame import frame_of

LARGE = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 30, compression="none", retention_s=3600)


async def publish(
    server: NatsServer, group: str, pieces: list[tuple[bytes, Chunk]], purge: int = 0, sizes: dict[int, int] | None = None
) -> None:
    """``sizes``: of bodies that are compressed, by the sequences of their chunks."""
    async with connected(server.settings(), "test") as client:
        stream = ChangeStream(client, GroupNames(group))
        await stream.ensure(LARGE)
        total = 0
        for number, (data, chunk) in enumerate(pieces, start=1):
            size = (sizes or {}).get(number)
            total += counted_bytes(data, chunk, size)
            position = Position(LSN(100 * number), number)
            settled = number if chunk.is_last else number - 1
            headers = MessageHeaders(position, position, LSN(0), settled, total, chunk, size=size)
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


def test_no_message_behind_a_range_is_asked_for(
    nats_server: NatsServer, group: str, reader: ChangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with many definitions has many ranges of one message."""
    asyncio.run(publish(nats_server, group, [*whole(b"a", b"b", b"c"), *chunks(b"1", b"2", b"3"), *whole(b"d", b"e")]))
    arrived: list[int] = []
    fetch = ChangeStream.fetch

    async def noted(self: ChangeStream, first: int, count: int, size: int) -> list[StoredMessage]:
        found = await fetch(self, first, count, size)
        arrived.extend(message.sequence for message in found)
        return found

    monkeypatch.setattr(ChangeStream, "fetch", noted)
    assert [body.data for body in reader.bodies(2, 3)] == [b"b", b"c"]
    assert arrived == [2, 3]
    assert [body.data for body in reader.bodies(4, 4)] == [b"123"]
    assert arrived[2:5] == [4, 5, 6]


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


def test_compressed_bodies_among_others_arrive_as_they_were_and_count_as_what_they_were(
    nats_server: NatsServer, group: str, reader: ChangeReader
) -> None:
    body = bytes(range(256)) * 40
    frame = frame_of(body)
    parts = chunks(frame[:100], frame[100:200], frame[200:])
    pieces = [*whole(b"a"), *whole(frame), *parts[:2], *parts, *whole(b"z")]
    asyncio.run(publish(nats_server, group, pieces, sizes=dict.fromkeys(range(2, 8), len(body))))
    assert [(each.first_sequence, each.data) for each in reader.bodies(1, 8)] == [(1, b"a"), (2, body), (5, body), (8, b"z")]
    marks = [mark for sequence in range(1, 9) if (mark := reader.mark(sequence)) is not None]
    one, two = 1 + len(body), 1 + 2 * len(body)
    assert [mark.bytes_through for mark in marks] == [1, one, one, one, one, one, two, two + 1]
    assert [mark.bytes_before for mark in marks] == [0, 1, one, one, one, one, one, two]


def test_a_compressed_body_that_is_damaged_is_not_read(nats_server: NatsServer, group: str, reader: ChangeReader) -> None:
    frame = bytearray(frame_of(bytes(range(256)) * 40))
    frame[-1] ^= 1
    asyncio.run(publish(nats_server, group, whole(b"a", bytes(frame)), sizes={2: 256 * 40}))
    bodies = reader.bodies(1, 2)
    assert next(bodies).data == b"a"
    with pytest.raises(WireError, match="is damaged"):
        next(bodies)


def test_marks_tell_sizes_and_settled_ends(nats_server: NatsServer, group: str, reader: ChangeReader) -> None:
    asyncio.run(publish(nats_server, group, [*whole(b"abc"), *chunks(b"12", b"3")]))
    first, last = reader.mark(1), reader.peek_last()
    assert first is not None
    assert last is not None
    assert (first.settled, first.bytes_before, first.bytes_through) == (1, 0, 3)
    assert (last.sequence, last.settled, last.bytes_before, last.bytes_through) == (3, 3, 5, 6)
    assert reader.mark(4) is None
