"""What is removed from a group's two streams, what never is, and the warning of a worker that holds messages and is not there."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.aio.client import Client

from pgsluice.replicator.retention import FinishedCopyRetention, RunningCopyRetention
from pgsluice.replicator.snapshot.held_ranges import HeldRanges
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.change_retention import AbsentWorkers, ChangeRetention
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.message import Chunk, MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import format_lsn
from tests.replicated_group import Group
from tests.replicator.random_ranges import RandomRanges
from tests.servers import NatsServer
from tests.worker.published_copy import CopyPublisher, copy_publisher


def purge(replication: Group, retention_s: float, **applied: int) -> int:
    """How many messages are removed when the given workers have applied so much."""

    async def call(stream: ChangeStream, bucket: StateBucket) -> int:
        state = await stream.state()
        assert state is not None
        for worker, sequence in applied.items():
            record: dict[str, Any] = {"sequence": sequence, "stream_created": state.created}
            await bucket.put(worker_key(worker), record)
        return await ChangeRetention(stream, bucket, retention_s).purge()

    removed = replication.with_broker(call)
    assert isinstance(removed, int)
    return removed


def test_a_sequence_of_a_stream_that_counts_anew_removes_nothing_that_is_not_applied(replication: Group) -> None:
    """After the broker lost messages, which were published again in fewer: the worker has 4 of the old ones, 1 of these."""
    publish_messages(replication, 3)

    async def call(stream: ChangeStream, bucket: StateBucket) -> int:
        state, first = await stream.state(), await stream.message(1)
        assert state is not None
        assert first is not None
        applied = format_lsn(MessageHeaders.decode(first.headers).last.commit_lsn)
        await bucket.put(worker_key("w"), {"sequence": 4, "commit_lsn": applied, "stream_created": state.created})
        return await ChangeRetention(stream, bucket, 0).purge()

    assert replication.with_broker(call) == 0


def publish_messages(replication: Group, count: int) -> None:
    for number in range(count):
        replication.replicate()
        replication.source.execute(f"INSERT INTO t VALUES ({number}, 'v')")
    replication.replicate()
    assert replication.stream_state().messages == count


def test_nothing_is_removed_while_no_worker_is_registered(replication: Group) -> None:
    publish_messages(replication, 3)
    assert purge(replication, retention_s=0) == 0


def test_only_what_every_worker_applied_is_removed(replication: Group) -> None:
    publish_messages(replication, 4)
    assert purge(replication, retention_s=0, fast=4, slow=2) == 2
    assert replication.stream_state().first_sequence == 3
    assert purge(replication, retention_s=0) == 0


def test_what_a_table_that_catches_up_has_not_read_stays(replication: Group) -> None:
    publish_messages(replication, 4)

    async def call(stream: ChangeStream, bucket: StateBucket) -> int:
        state, second = await stream.state(), await stream.message(2)
        assert state is not None
        assert second is not None
        lsn = format_lsn(MessageHeaders.decode(second.headers).last.commit_lsn)
        report = WorkerReport(4, stream_created=state.created, catching_up=(7,), catch_up_sequence=2, catch_up_lsn=lsn)
        await bucket.put(worker_key("w"), report)
        return await ChangeRetention(stream, bucket, 0).purge()

    assert replication.with_broker(call) == 2


def test_the_last_settled_message_stays_and_the_next_start_resumes_from_it(replication: Group) -> None:
    publish_messages(replication, 3)
    assert purge(replication, retention_s=0, only=3) == 2
    replication.source.execute("INSERT INTO t VALUES (17, 'v')")
    replication.replicate()
    assert replication.audit().changes == 2


def test_messages_younger_than_the_retention_time_stay(replication: Group) -> None:
    publish_messages(replication, 3)
    assert purge(replication, retention_s=3600, only=3) == 0


def test_a_transaction_that_goes_on_is_not_cut_in_two(replication: Group) -> None:
    publish_messages(replication, 1)
    replication.source.execute("INSERT INTO t SELECT n, repeat('v', 1000) FROM generate_series(100, 1100) n")
    replication.replicate()
    assert replication.stream_state().last_sequence > 3
    assert purge(replication, retention_s=0, only=3) == 1
    assert replication.audit().is_settled


def test_a_worker_of_an_earlier_stream_holds_everything(replication: Group) -> None:
    publish_messages(replication, 3)

    async def register(_: ChangeStream, bucket: StateBucket) -> None:
        await bucket.put(worker_key("old"), {"sequence": 3, "stream_created": "another"})

    replication.with_broker(register)
    assert purge(replication, retention_s=0, only=3) == 0


def warned_of(replication: Group, silence_s: float, **applied: int) -> list[list[str]]:
    """The names of two checks in a row, of workers that reported an hour ago."""

    async def check(stream: ChangeStream, bucket: StateBucket) -> list[list[str]]:
        state = await stream.state()
        assert state is not None
        for worker, sequence in applied.items():
            reported_at = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
            record = {"sequence": sequence, "stream_created": state.created, "updated_at": reported_at}
            await bucket.put(worker_key(worker), record)
        absent = AbsentWorkers(stream, bucket, silence_s)
        return [await absent.check(), await absent.check()]

    found = replication.with_broker(check)
    assert isinstance(found, list)
    return found


def test_a_worker_for_which_old_messages_wait_is_named_once_an_interval(replication: Group) -> None:
    for number in range(2):
        replication.replicate()
        replication.source.execute(f"INSERT INTO t VALUES ({number}, 'v')")
    replication.replicate()
    assert warned_of(replication, 7200, gone=1, done=2) == [[], []]
    assert warned_of(replication, 1800, gone=1, done=2) == [[], []], "the message that waits is young"
    assert warned_of(replication, 0, gone=1, done=2) == [["gone"], []]


class CopyStream:
    """A small snapshot stream and a bucket."""

    def __init__(self, client: Client, group: str, messages: CopyPublisher) -> None:
        self.names = GroupNames(group)
        self.stream = SnapshotStream(client, self.names)
        self.bucket = StateBucket(client, self.names)
        self.messages = messages
        self.held = HeldRanges(self.names, "first", older=0)

    async def publish(self, messages: int, range_number: int = 1) -> int:
        """The sequence of the last one."""
        for _ in range(messages):
            sequence = await self.messages.rows(1, bytes(10_000), range_number=range_number)
        return sequence

    async def publish_body(self, range_number: int, chunks: range, count: int) -> None:
        """Some chunks of a body of ``count``."""
        for index in chunks:
            await self.messages.rows(1, bytes(10_000), Chunk(index, count), range_number=range_number)

    async def apply(self, **workers: int) -> None:
        for worker, sequence in workers.items():
            await self.bucket.put(worker_key(worker), WorkerReport(0, sequence))

    async def purge(self) -> list[int]:
        """The sequences that are left."""
        await RunningCopyRetention(self.stream, self.bucket, self.held).purge()
        return [message.sequence for message in await self.stream.fetch(1, 1000, 1 << 30)]

    async def state(self) -> StreamState:
        state = await self.stream.state()
        assert state is not None
        return state


@pytest.fixture
async def place(group: str, nats_server: NatsServer) -> AsyncIterator[CopyStream]:
    async with connected(nats_server.settings(), "test") as client:
        made = CopyStream(client, group, await copy_publisher(client, group))
        settings = StreamSettings(1, (), 200_000, "none", 60.0)
        await made.stream.ensure(settings)
        await made.bucket.ensure(settings)
        yield made


def held(place: CopyStream, *numbers: int) -> None:
    place.held.hold((1, number) for number in numbers)


def finish(place: CopyStream, number: int, last_sequence: int, *, is_whole: bool = True) -> None:
    place.held.finish((1, number), last_sequence, is_whole=is_whole)


async def test_room_is_made_when_the_stream_is_half_full_and_every_worker_applied_it(place: CopyStream) -> None:
    held(place, 1, 2, 3)
    finish(place, 1, await place.publish(5))
    await place.apply(fast=15)
    assert await place.purge() == [1, 2, 3, 4, 5]
    finish(place, 2, await place.publish(10, range_number=2))
    assert await place.purge() == []
    finish(place, 3, await place.publish(12, range_number=3))
    await place.apply(fast=27, slow=20)
    assert await place.purge() == [21, 22, 23, 24, 25, 26, 27]


async def test_without_a_worker_no_copied_rows_are_removed(place: CopyStream) -> None:
    held(place, 1)
    finish(place, 1, await place.publish(15))
    assert len(await place.purge()) == 15


async def test_of_a_range_in_hand_the_newest_message_stays_and_nothing_else(place: CopyStream) -> None:
    held(place, 1, 2, 3)
    await place.publish(6, range_number=1)
    await place.publish(8, range_number=2)
    finish(place, 3, await place.publish(2, range_number=3))
    await place.apply(w=16)
    assert await place.purge() == [6, 14], "what is behind the oldest range that is held goes too"


async def test_a_range_in_hand_keeps_what_is_not_applied(place: CopyStream) -> None:
    held(place, 1, 2)
    await place.publish(4, range_number=1)
    await place.publish(13, range_number=2)
    await place.apply(w=2)
    assert await place.purge() == list(range(3, 18))
    await place.apply(w=15)
    assert await place.purge() == [4, 16, 17]


async def test_the_chunks_of_a_body_stay_until_the_last_one_is_applied(place: CopyStream) -> None:
    held(place, 1, 2)
    await place.publish(4, range_number=1)
    await place.publish_body(1, range(1, 9), 9)
    await place.publish(3, range_number=2)
    await place.apply(w=15)
    assert await place.purge() == [5, 6, 7, 8, 9, 10, 11, 12, 15], "whoever goes on with it publishes the last one only"
    await place.publish_body(1, range(9, 10), 9)
    assert await place.purge() == [5, 6, 7, 8, 9, 10, 11, 12, 15, 16]
    await place.apply(w=16)
    assert await place.purge() == [15, 16]


async def test_chunks_of_a_finished_range_stay_until_their_body_is_applied(place: CopyStream) -> None:
    held(place, 1, 2)
    await place.publish(4, range_number=1)
    await place.publish_body(1, range(1, 4), 4)
    await place.publish(8, range_number=2)
    await place.publish_body(1, range(4, 5), 4)
    finish(place, 1, 16, is_whole=False)
    await place.apply(w=15)
    assert await place.purge() == [5, 6, 7, 15, 16]
    await place.apply(w=16)
    await place.publish(7, range_number=2)
    assert await place.purge() == list(range(17, 24))


async def test_what_is_older_than_the_round_goes_only_when_all_of_it_is_applied(place: CopyStream) -> None:
    """It may be anything: parts of bodies, ranges that nobody knows."""
    await place.publish(10)
    place.held = HeldRanges(place.names, "first", older=10)
    held(place, 2)
    await place.publish(3, range_number=2)
    await place.apply(w=9)
    assert len(await place.purge()) == 13
    await place.apply(w=10)
    assert await place.purge() == [11, 12, 13]


async def test_nothing_stays_of_a_range_that_was_released(place: CopyStream) -> None:
    held(place, 1, 2, 3)
    await place.publish(4, range_number=1)
    await place.publish_body(2, range(1, 13), 14)
    place.held.release((1, 2))
    place.held.release((1, 3))
    await place.apply(w=16)
    assert await place.purge() == [4]
    assert place.held.ended == []


async def test_ranges_of_which_nothing_is_left_are_forgotten(place: CopyStream) -> None:
    held(place, 1, 2, 3)
    finish(place, 1, await place.publish(5, range_number=1))
    await place.publish(2, range_number=2)
    finish(place, 3, await place.publish(9, range_number=3))
    await place.apply(w=16)
    await place.purge()
    assert place.held.ended == []


async def test_what_somebody_needs_stays_and_the_rest_goes_whatever_tasks_left(place: CopyStream) -> None:
    chance = random.Random(14)
    for trial in range(40):
        state = await place.state()
        await place.stream.purge_up_to(state.last_sequence)
        place.held = HeldRanges(place.names, "first", older=0)
        ranges = RandomRanges(chance, place.messages, place.held)
        await ranges.publish(100 * trial, size=18, bytes_each=10_000)
        for applied in sorted(chance.sample(ranges.sequences, chance.randint(1, 3))):
            await place.apply(w=applied)
            left = set(await place.purge())
            needed = ranges.needed(applied)
            assert needed <= left, f"trial {trial}, applied up to {applied}"
            is_enough = (await place.state()).bytes < 100_000
            assert is_enough or left <= needed | ranges.may_stay(applied), f"trial {trial}, applied up to {applied}"


def finished(last_sequence: int, age: timedelta) -> SnapshotRecord:
    at = (datetime.now(UTC) - age).isoformat()
    return SnapshotRecord("s", "0/1", CopyState.FINISHED, CopyMode.COPY, at, at, last_sequence, "7", "shop", "then")


async def test_a_finished_copy_goes_when_it_is_old_and_applied(place: CopyStream) -> None:
    retention, ledger = FinishedCopyRetention(place.stream, place.bucket, 60.0), Ledger(place.bucket)
    await place.publish(5)
    await place.apply(w=5)
    young, old = finished(5, timedelta(seconds=50)), finished(5, timedelta(seconds=70))
    for record in (young, replace(old, last_sequence=6), replace(old, state=CopyState.RUNNING)):
        await ledger.store_snapshot(record)
        await retention.purge()
        assert (await place.state()).messages == 5
    await ledger.store_snapshot(old)
    await retention.purge()
    state = await place.state()
    assert (state.messages, state.last_sequence) == (0, 5)
