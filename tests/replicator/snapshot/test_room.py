"""What may be removed from the snapshot stream, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.client import Client

from pgsluice.replicator.snapshot.room import Borders, CopyRetention, CopyRoom
from pgsluice.shared.broker.bucket import StateBucket, worker_key
from pgsluice.shared.broker.connection import connect
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.broker.streams import SnapshotStream, StreamState
from pgsluice.shared.config.settings import StreamSettings
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer

FIRST, SECOND, THIRD = (1, 1), (1, 2), (1, 3)


def test_nothing_goes_while_a_range_that_was_open_is_not_finished() -> None:
    borders = Borders()
    borders.note(10, frozenset({FIRST, SECOND}))
    borders.note(20, frozenset({SECOND, THIRD}))
    assert borders.removable(applied=100) == 0


def test_what_lies_before_goes_when_the_last_messages_of_the_ranges_open_then_are_applied() -> None:
    borders = Borders()
    borders.note(10, frozenset({FIRST}))
    borders.note(20, frozenset({SECOND}))
    assert borders.removable(applied=19) == 0
    assert borders.removable(applied=20) == 10
    assert borders.removable(applied=20) == 0


def test_of_several_borders_the_newest_counts() -> None:
    borders = Borders()
    for sequence in (10, 20, 30):
        borders.note(sequence, frozenset())
    assert borders.removable(applied=25) == 20


def test_a_range_whose_end_lies_before_another_s_moves_no_border_back() -> None:
    borders = Borders()
    borders.note(20, frozenset({FIRST}))
    borders.note(10, frozenset())
    assert borders.removable(applied=19) == 0
    assert borders.removable(applied=20) == 20


def test_a_stream_full_of_ranges_has_room_again_but_for_the_newest() -> None:
    """Two tasks, one range after the other; the two that are open when the stream is full never finish."""
    borders = Borders()
    for number in range(3, 33):
        borders.note(number * 10, frozenset({(1, number), (1, number + 1)}))
    assert borders.removable(applied=1000) == 300


class Place:
    """A small snapshot stream and a bucket."""

    def __init__(self, client: Client, group: str) -> None:
        self.client = client
        self.names = GroupNames(group)
        self.stream = SnapshotStream(client, self.names)
        self.bucket = StateBucket(client, self.names)

    async def publish(self, messages: int) -> None:
        for _ in range(messages):
            await self.client.jetstream().publish(self.names.snapshot_range_subject("s", 1, 1), bytes(10_000))

    async def state(self) -> StreamState:
        state = await self.stream.state()
        assert state is not None
        return state


@pytest.fixture
async def place(group: str, nats_server: NatsServer) -> AsyncIterator[Place]:
    client = await connect(nats_server.settings(), "test")
    made = Place(client, group)
    settings = StreamSettings(1, (), 200_000, 60.0)
    await made.stream.ensure(settings)
    await made.bucket.ensure(settings)
    yield made
    await client.close()


async def test_room_is_made_when_the_stream_is_half_full_and_every_worker_applied_it(place: Place) -> None:
    borders = Borders()
    room = CopyRoom(place.stream, place.bucket, borders)
    await place.publish(5)
    borders.note(5, frozenset())
    await place.bucket.put(worker_key("fast"), {"snapshot_sequence": 15})
    await room.make()
    assert (await place.state()).messages == 5
    await place.publish(10)
    borders.note(15, frozenset())
    await room.make()
    assert (await place.state()).first_sequence == 16
    await place.publish(12)
    borders.note(27, frozenset())
    await place.bucket.put(worker_key("fast"), {"snapshot_sequence": 27})
    await place.bucket.put(worker_key("slow"), {"snapshot_sequence": 20})
    await room.make()
    assert (await place.state()).first_sequence == 16


async def test_without_a_worker_nothing_is_removed(place: Place) -> None:
    borders = Borders()
    await place.publish(15)
    borders.note(15, frozenset())
    await CopyRoom(place.stream, place.bucket, borders).make()
    assert (await place.state()).messages == 15


def finished(last_sequence: int, age: timedelta) -> SnapshotRecord:
    at = (datetime.now(UTC) - age).isoformat()
    return SnapshotRecord("s", "0/1", CopyState.FINISHED, CopyMode.COPY, at, at, last_sequence, "7", "shop", "then")


async def test_a_finished_copy_goes_when_it_is_old_and_applied(place: Place) -> None:
    retention, ledger = CopyRetention(place.stream, place.bucket, 60.0), Ledger(place.bucket)
    await place.publish(5)
    await place.bucket.put(worker_key("w"), {"snapshot_sequence": 5})
    young, old = finished(5, timedelta(seconds=50)), finished(5, timedelta(seconds=70))
    for record in (young, replace(old, last_sequence=6), replace(old, state=CopyState.RUNNING)):
        await ledger.store_snapshot(record)
        await retention.purge()
        assert (await place.state()).messages == 5
    await ledger.store_snapshot(old)
    await retention.purge()
    state = await place.state()
    assert (state.messages, state.last_sequence) == (0, 5)
