"""Somebody else publishes under our ids: the same again is told its first place, anything else stops the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import nats
import pytest
from nats.js.api import PubAck

from pgsluice.shared.broker.streams import StoredMessage
from pgsluice.shared.errors import TerminalError
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch, position
from pgsluice.worker.sinks.nats.sink import NatsSink
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.sinks.nats.test_contract import GroupDestination, JsonDestination, tell_group

BATCH_HEADERS = ("Nats-Batch-", "Nats-Expected-", "Nats-Subject", "Nats-Sequence", "Nats-Stream", "Nats-Time", "Nats-Num")

Both = JsonDestination | GroupDestination


@pytest.fixture(params=[JsonDestination, GroupDestination])
def destination(request: pytest.FixtureRequest, nats_server: NatsServer, group: str) -> Both:
    tell_group(nats_server.settings(), group)
    made: Both = request.param(nats_server.settings(), group)
    return made


@pytest.fixture
def sink(destination: Both) -> Iterator[NatsSink]:
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))
    apply(sink, batch([2]))
    yield sink
    sink.close()


def publish_copy(server: NatsServer, message: StoredMessage, data: bytes | None = None, **changed: str) -> PubAck:
    """As the message is, but for what is given."""
    headers = {name: value for name, value in message.headers.items() if not name.startswith(BATCH_HEADERS)}

    async def send() -> PubAck:
        client = await nats.connect(server.url)
        payload = message.data if data is None else data
        acknowledged = await client.jetstream().publish(message.headers["Nats-Subject"], payload, headers=headers | changed)
        await client.close()
        return acknowledged

    return asyncio.run(send())


def stored_copy(server: NatsServer, message: StoredMessage) -> PubAck:
    """When JetStream has forgotten the id."""

    def stored() -> PubAck | None:
        acknowledged = publish_copy(server, message)
        return None if acknowledged.duplicate else acknowledged

    return wait_until(stored, deadline_s=180, what="a copy that is stored", interval_s=0.2)


def test_the_same_message_again_is_told_its_first_place(destination: Both, sink: NatsSink, nats_server: NatsServer) -> None:
    apply(sink, batch([3]))
    last = destination.reader.stored()[-1]
    acknowledged = publish_copy(nats_server, last)
    assert (acknowledged.duplicate, acknowledged.seq) == (True, last.sequence)
    assert apply(sink, batch([4])) == position(4)
    assert destination.delivered() == list(range(2, 10))


@pytest.mark.parametrize("which", [-1, 0])
def test_a_copy_of_one_of_our_messages_stops_the_worker_and_whoever_comes_after_it(
    which: int, destination: Both, sink: NatsSink, nats_server: NatsServer
) -> None:
    """Also of an old one: what it says of the position is not believed."""
    ours = [each for each in destination.reader.stored() if "Pgsluice-State" in each.headers]
    stored_copy(nats_server, ours[which])
    count = destination.reader.last_sequence()
    for _ in range(2):
        with pytest.raises(TerminalError, match="holds a copy of a message"):
            apply(sink, batch([3]))
    sink.close()
    successor = destination.new_sink()
    with pytest.raises(TerminalError, match="holds a copy of a message"):
        successor.open()
    successor.close()
    assert destination.reader.last_sequence() == count, "nothing was published behind it"


def test_another_payload_under_our_next_id_stops_the_worker(destination: Both, sink: NatsSink, nats_server: NatsServer) -> None:
    """Also where it says that it is ours, at the right place."""
    last = destination.reader.stored()[-1]
    following = last.headers["Nats-Msg-Id"].replace("/7D0:", "/BB8:")
    forged = last.headers["Pgsluice-State"].replace(f'"at":{last.sequence}', f'"at":{last.sequence + 1}')
    publish_copy(nats_server, last, b"{}", **{"Nats-Msg-Id": following, "Pgsluice-State": forged})
    with pytest.raises(TerminalError, match=f"holds another message under the id {following}"):
        apply(sink, batch([3]))
