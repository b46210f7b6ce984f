"""Each message once and in order, whoever else writes and whatever the broker answers."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from pgsluice.replicator import publisher as publisher_module
from pgsluice.replicator.assembler import Message
from pgsluice.replicator.progress import PublishedCounts
from pgsluice.replicator.publisher import WINDOW_MESSAGES, Publisher
from pgsluice.replicator.resume import StreamEnd, find_resume_point
from pgsluice.replicator.tasks import cancel
from pgsluice.shared.broker.connection import connect
from pgsluice.shared.broker.streams import ChangeStream, stream_configuration
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.metrics.metric import SECONDS
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.wire.compressed_body import BodyCompressor
from pgsluice.shared.wire.message import EXPECTED_LAST_SEQUENCE_HEADER, ID_HEADER, Chunk, MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from tests.servers import NatsServer
from tests.waiting import wait_until_async

PREFIX = "17/pgsluice_t/"
EMPTY = StreamEnd(0, 0, 0, LSN(0))
SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 30, compression="none", retention_s=60)


def message(number: int, body: bytes = b"body", settled: bool = True, is_definition: bool = False) -> Message:
    position = Position(LSN(number * 100), 1)
    return Message(position, position, LSN(number * 100 + 8), settled, 1, body, is_definition=is_definition)


class Broker:
    """One stream and the publishers of a test."""

    def __init__(self, client: Client, stream: ChangeStream) -> None:
        self.client = client
        self.stream = stream
        self.acknowledged: list[int] = []
        self.counts = PublishedCounts()
        self._tasks: list[asyncio.Task[None]] = []

    def publisher(self, end: StreamEnd = EMPTY, *, compresses: bool = False) -> tuple[Publisher, asyncio.Task[None]]:
        compress = BodyCompressor().compress if compresses else None
        publisher = Publisher(self.client, self.stream, PREFIX, end, self.acknowledged.append, Pulse(), self.counts, compress)
        self._tasks.append(asyncio.ensure_future(publisher.run()))
        return publisher, self._tasks[-1]

    async def configure(self, **changed: Any) -> None:
        configuration = stream_configuration(self.stream.name, [self.stream.subject], SETTINGS) | changed
        await self.client.jetstream().update_stream(StreamConfig(**configuration))

    async def write_as(self, message_id: str, data: bytes = b"x", **headers: str) -> dict[str, Any]:
        """JetStream's answer to somebody's message."""
        answer = await self.client.request(self.stream.subject, data, headers={ID_HEADER: message_id} | headers)
        content: dict[str, Any] = orjson.loads(answer.data)
        return content

    async def ids(self) -> list[str]:
        return [stored.headers[ID_HEADER].removeprefix(PREFIX) for stored in await self.stream.fetch(1, 1000, 1 << 30)]

    async def close(self) -> None:
        await cancel(self._tasks)
        await self.stream.delete()
        await self.client.close()


OpenBroker = Callable[[], Any]


@pytest.fixture
def open_broker(group: str, nats_server: NatsServer) -> OpenBroker:
    @asynccontextmanager
    async def open_it() -> AsyncIterator[Broker]:
        client = await connect(nats_server.settings(), "test")
        broker = Broker(client, ChangeStream(client, GroupNames(group)))
        await broker.stream.ensure(SETTINGS)
        try:
            yield broker
        finally:
            await broker.close()

    return open_it


async def test_messages_are_stored_in_order_with_headers_that_continue_the_stream(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        publisher, _ = broker.publisher()
        count = 3 * WINDOW_MESSAGES
        for number in range(1, count + 1):
            assert await publisher.publish(message(number, settled=number % 2 == 0)) == number
        await publisher.flush()
        assert broker.acknowledged[-1] == count
        assert await broker.ids() == [f"{message(n).first}-{message(n).last}" for n in range(1, count + 1)]
        headers = MessageHeaders.decode((await broker.stream.message(5)).headers)
        assert (headers.settled, headers.total_bytes, headers.flushed) == (4, 5 * len(b"body"), 508)


async def test_every_message_names_the_newest_definition_up_to_it_also_after_a_restart(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        publisher, task = broker.publisher()
        too_large = b"x" * broker.client.max_payload
        for number, body in ((1, b"rows"), (2, too_large), (3, b"rows")):
            await publisher.publish(message(number, body, is_definition=number == 2))
        await publisher.flush()
        await cancel([task])
        state = await broker.stream.state()
        assert state is not None
        point = await find_resume_point(broker.stream, state, PREFIX, LSN(0))
        assert point.published.counts_definitions
        publisher, _ = broker.publisher(point.end)
        await publisher.publish(message(4))
        await publisher.flush()
        stored = await broker.stream.fetch(1, 1000, 1 << 30)
        assert [MessageHeaders.decode(each.headers).ddl for each in stored] == [0, 0, 3, 3, 3], "it came in two chunks"


@pytest.mark.parametrize(("slot_flushed", "is_due"), [(99, True), (100, True), (101, False)])
async def test_what_was_published_last_is_due_where_the_server_sends_it_again(
    open_broker: OpenBroker, slot_flushed: int, is_due: bool
) -> None:
    """It sends what commits at the slot's place or later."""
    async with open_broker() as broker:
        publisher, _ = broker.publisher()
        await publisher.publish(message(1))
        await publisher.flush()
        state = await broker.stream.state()
        assert state is not None
        point = await find_resume_point(broker.stream, state, PREFIX, LSN(slot_flushed))
        assert (point.published.last, point.published.is_due) == (message(1).last, is_due)


async def test_bytes_of_a_message_that_was_not_completed_count_too(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        publisher, _ = broker.publisher()
        await publisher.publish(message(1))
        await publisher.flush()
        first = MessageHeaders.decode((await broker.stream.message(1)).headers)
        begun = replace(first, last=message(2).last, total_bytes=first.total_bytes + 5, chunk=Chunk(1, 2))
        await broker.write_as(f"{PREFIX}begun", b"12345", **begun.encode())
        state = await broker.stream.state()
        assert state is not None
        point = await find_resume_point(broker.stream, state, PREFIX, LSN(0))
        assert (point.end.sequence, point.end.total_bytes) == (2, first.total_bytes + 5)
        assert point.published.last == first.last


@pytest.mark.parametrize("interval_s", [0.0, 1e12])
async def test_the_bell_is_rung_when_messages_are_acknowledged_and_in_any_case_at_the_last_one(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    monkeypatch.setattr(publisher_module, "RING_INTERVAL_S", interval_s)
    async with open_broker() as broker:
        rings: asyncio.Queue[int] = asyncio.Queue()

        async def ring(_: Msg) -> None:
            await rings.put(broker.acknowledged[-1])

        await broker.client.subscribe(broker.stream.bell, cb=ring)
        publisher, _ = broker.publisher()
        for count in (1, 1 + 3 * WINDOW_MESSAGES):
            for number in range(publisher.end.sequence + 1, count + 1):
                await publisher.publish(message(number))
            await publisher.flush()
            async with asyncio.timeout(10):
                while await rings.get() < count:
                    pass


async def test_a_body_over_max_payload_is_cut_and_only_its_last_chunk_counts(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        publisher, _ = broker.publisher()
        await publisher.publish(message(1))
        body = bytes(range(256)) * 10_000
        assert await publisher.publish(message(2, body)) == 4
        await publisher.flush()
        stored = await broker.stream.fetch(2, 10, 1 << 30)
        headers = [MessageHeaders.decode(piece.headers) for piece in stored]
        assert b"".join(piece.data for piece in stored) == body
        assert [str(header.chunk.index) for header in headers] == ["1", "2", "3"]
        assert [header.flushed for header in headers] == [108, 108, 208]
        assert [header.settled for header in headers] == [1, 1, 4]


async def test_bodies_are_compressed_before_they_are_cut_and_only_where_it_is_worth_it(open_broker: OpenBroker) -> None:
    text = random.Random(1).randbytes(2_000_000).hex().encode()  # half of it is left
    bodies = [b"small", b"x" * 5_000_000, text, bytes.fromhex(text.decode())[:100_000], b"y" * 1_000]
    async with open_broker() as broker:
        end = EMPTY
        for numbers, compresses in (((1, 2, 3, 4), True), ((5,), False)):
            publisher, _ = broker.publisher(end, compresses=compresses)
            for number in numbers:
                await publisher.publish(message(number, bodies[number - 1]))
            await publisher.flush()
            end = publisher.end
        stored = await broker.stream.fetch(1, 100, 1 << 30)
        headers = [MessageHeaders.decode(piece.headers) for piece in stored]
        assert [str(each.chunk) for each in headers] == ["1/1", "1/1", "1/2", "2/2", "1/1", "1/1"]
        assert [each.size for each in headers] == [None, len(bodies[1]), len(text), len(text), None, None]
        last = [index for index, each in enumerate(headers) if each.chunk.is_last]
        pieces = [stored[low:high] for low, high in itertools.pairwise([0, *(index + 1 for index in last)])]
        assert [headers[i].body([one.data for one in some]) for i, some in zip(last, pieces, strict=True)] == bodies
        assert [headers[index].total_bytes for index in last] == list(itertools.accumulate(len(body) for body in bodies))
        assert end.total_bytes == sum(len(body) for body in bodies)


async def test_an_older_publishers_message_that_is_under_way_cannot_slip_in(open_broker: OpenBroker) -> None:
    """The stale publisher's first message was beaten by the new publisher's; its second one expects the sequence that the stream
    now has, but not the message."""
    async with open_broker() as broker:
        new, _ = broker.publisher()
        await new.publish(message(1))
        await new.flush()
        stale_second = {EXPECTED_LAST_SEQUENCE_HEADER: "1", "Nats-Expected-Last-Msg-Id": PREFIX + "the stale first one"}
        assert "error" in await broker.write_as(PREFIX + "the stale second one", **stale_second)
        await new.publish(message(2))
        await new.flush()
        assert (await broker.stream.state()).last_sequence == 2


async def test_of_two_publishers_of_a_group_one_goes_on_and_the_other_is_told(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        winner, _ = broker.publisher()
        await winner.publish(message(1))
        await winner.flush()
        loser, lost = broker.publisher()
        await loser.publish(message(2))
        await loser.publish(message(3))
        with pytest.raises(TransientError, match="another replicator of this group"):
            await asyncio.wait_for(lost, 120)
        await winner.publish(message(4))
        await winner.flush()
        assert len(await broker.ids()) == 2


async def test_a_message_of_somebody_else_stops_publishing(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        publisher, task = broker.publisher()
        await broker.write_as("not ours")
        await publisher.publish(message(1))
        with pytest.raises(TerminalError, match="something else writes into stream"):
            await asyncio.wait_for(task, 120)


async def test_what_was_stored_without_our_knowing_is_acknowledged_and_not_stored_again(open_broker: OpenBroker) -> None:
    """The acknowledgement was lost, and JetStream has forgotten the id by the time of the second attempt."""
    async with open_broker() as broker:
        await broker.configure(duplicate_window=0.1)
        first = message(1)
        await broker.write_as(f"{PREFIX}{first.first}-{first.last}", first.body)
        await asyncio.sleep(0.3)
        publisher, _ = broker.publisher()
        await publisher.publish(first)
        await publisher.publish(message(2))
        await publisher.flush()
        assert len(await broker.ids()) == 2


async def test_a_message_that_is_there_already_is_acknowledged_at_its_place(open_broker: OpenBroker) -> None:
    """JetStream still knows its id."""
    async with open_broker() as broker:
        first = message(1)
        await broker.write_as(f"{PREFIX}{first.first}-{first.last}", first.body)
        publisher, _ = broker.publisher()
        await publisher.publish(first)
        await publisher.publish(message(2))
        await publisher.flush()
        assert len(await broker.ids()) == 2


@pytest.mark.parametrize("window", [0.1, 120.0])
async def test_another_content_under_one_of_our_ids_stops_publishing(open_broker: OpenBroker, window: float) -> None:
    """Whether JetStream still knows the id or not."""
    async with open_broker() as broker:
        await broker.configure(duplicate_window=window)
        first = message(1)
        await broker.write_as(f"{PREFIX}{first.first}-{first.last}", b"hostile")
        if window < 1:
            await asyncio.sleep(2 * window)
        publisher, task = broker.publisher()
        await publisher.publish(first)
        with pytest.raises(TerminalError, match="of one of this group's messages, and other content"):
            await asyncio.wait_for(task, 120)
        assert not broker.acknowledged


async def test_a_stream_that_lost_acknowledged_messages_ends_the_session(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        publisher, task = broker.publisher(StreamEnd(5, 5, 0, LSN(0)))
        await publisher.publish(message(6))
        with pytest.raises(TransientError, match="does not end at the last acknowledged message"):
            await asyncio.wait_for(task, 120)


async def test_a_full_stream_is_waited_for(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.configure(max_bytes=100)
        publisher, task = broker.publisher()
        await publisher.publish(message(1, b"x" * 1000))
        await wait_until_async(lambda: _is_waiting(publisher), what="the full stream")
        assert not task.done()
        await broker.configure(max_bytes=1 << 20)
        await asyncio.wait_for(publisher.flush(), 120)
        assert broker.acknowledged == [1]


async def _is_waiting(publisher: Publisher) -> bool:
    return publisher._full_logged_at > 0


async def test_a_message_that_the_stream_never_takes_stops_publishing(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        await broker.configure(max_msg_size=100)
        publisher, task = broker.publisher()
        await publisher.publish(message(1, b"x" * 1000))
        with pytest.raises(TerminalError, match="refuses messages"):
            await asyncio.wait_for(task, 120)


async def test_a_full_window_holds_publish_back_until_acknowledgements_come(open_broker: OpenBroker) -> None:
    async with open_broker() as broker:
        publisher = Publisher(
            broker.client, broker.stream, PREFIX, EMPTY, broker.acknowledged.append, Pulse(), broker.counts
        )  # nothing sends yet
        for number in range(1, WINDOW_MESSAGES + 1):
            await publisher.publish(message(number))
        waiting = asyncio.ensure_future(publisher.publish(message(WINDOW_MESSAGES + 1)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert broker.counts.acknowledged_s.read().counts == (0,) * (len(SECONDS) + 1)
        sending = asyncio.ensure_future(publisher.run())
        assert await asyncio.wait_for(waiting, 120) == WINDOW_MESSAGES + 1
        await publisher.flush()
        await cancel([sending])
        assert sum(broker.counts.acknowledged_s.read().counts) == WINDOW_MESSAGES + 1
        assert broker.counts.window_blocked_s >= 0.05
        assert broker.counts.full_blocked_s == 0.0
