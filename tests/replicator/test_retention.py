"""What is removed from a group's two streams, what never is, and the warning of a worker that holds messages and is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.aio.client import Client

from pgsluice.replicator.retention import AbsentWorkers, ChangeRetention, FinishedCopyRetention, RunningCopyRetention
from pgsluice.replicator.snapshot.schedule import SettledRanges
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import format_lsn
from tests.replicated_group import Group
from tests.servers import NatsServer


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
async def place(group: str, nats_server: NatsServer) -> AsyncIterator[CopyStream]:
    async with connected(nats_server.settings(), "test") as client:
        made = CopyStream(client, group)
        settings = StreamSettings(1, (), 200_000, "none", 60.0)
        await made.stream.ensure(settings)
        await made.bucket.ensure(settings)
        yield made


async def test_room_is_made_when_the_stream_is_half_full_and_every_worker_applied_it(place: CopyStream) -> None:
    settled = SettledRanges()
    retention = RunningCopyRetention(place.stream, place.bucket, settled.removable)
    await place.publish(5)
    settled.note(5, frozenset())
    await place.bucket.put(worker_key("fast"), WorkerReport(0, 15))
    await retention.purge()
    assert (await place.state()).messages == 5
    await place.publish(10)
    settled.note(15, frozenset())
    await retention.purge()
    assert (await place.state()).first_sequence == 16
    await place.publish(12)
    settled.note(27, frozenset())
    await place.bucket.put(worker_key("fast"), WorkerReport(0, 27))
    await place.bucket.put(worker_key("slow"), WorkerReport(0, 20))
    await retention.purge()
    assert (await place.state()).first_sequence == 16


async def test_without_a_worker_no_copied_rows_are_removed(place: CopyStream) -> None:
    settled = SettledRanges()
    await place.publish(15)
    settled.note(15, frozenset())
    await RunningCopyRetention(place.stream, place.bucket, settled.removable).purge()
    assert (await place.state()).messages == 15


def finished(last_sequence: int, age: timedelta) -> SnapshotRecord:
    at = (datetime.now(UTC) - age).isoformat()
    return SnapshotRecord("s", "0/1", CopyState.FINISHED, CopyMode.COPY, at, at, last_sequence, "7", "shop", "then")


async def test_a_finished_copy_goes_when_it_is_old_and_applied(place: CopyStream) -> None:
    retention, ledger = FinishedCopyRetention(place.stream, place.bucket, 60.0), Ledger(place.bucket)
    await place.publish(5)
    await place.bucket.put(worker_key("w"), WorkerReport(0, 5))
    young, old = finished(5, timedelta(seconds=50)), finished(5, timedelta(seconds=70))
    for record in (young, replace(old, last_sequence=6), replace(old, state=CopyState.RUNNING)):
        await ledger.store_snapshot(record)
        await retention.purge()
        assert (await place.state()).messages == 5
    await ledger.store_snapshot(old)
    await retention.purge()
    state = await place.state()
    assert (state.messages, state.last_sequence) == (0, 5)
