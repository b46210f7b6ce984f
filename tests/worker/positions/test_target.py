"""Where a worker that ends by itself has to come to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.message import WHOLE, MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.positions.target import DrainTarget, check_until, find_drain_target
from pgsluice.worker.sinks.sink import Applied, CatchUp
from tests.servers import NatsServer

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 24, compression="none", retention_s=60)


@dataclass
class Group:
    client: Client
    names: GroupNames

    async def publish(self, *settled: int) -> None:
        """Messages 1, 2, …, each with the newest sequence at which no transaction was open."""
        stream = ChangeStream(self.client, self.names)
        for number, sequence in enumerate(settled, start=1):
            position = Position(LSN(number), 1)
            headers = MessageHeaders(position, position, LSN(0), sequence, number, WHOLE)
            await self.client.jetstream().publish(stream.subject, b"x", headers=headers.encode())

    async def copy(self, state: CopyState, last_sequence: int) -> None:
        record = SnapshotRecord("first", "0/1", state, CopyMode.COPY_AND_STREAM, "2026-01-31", "", last_sequence, "1", "shop", "")
        await Ledger(StateBucket(self.client, self.names)).store_snapshot(record)

    async def target(self, until: str) -> DrainTarget | None:
        return await find_drain_target(self.client, self.names, until)


@pytest_asyncio.fixture
async def streams(nats_server: NatsServer, group: str) -> AsyncIterator[Group]:
    async with connected(nats_server.settings(), "test") as client:
        names = GroupNames(group)
        await ChangeStream(client, names).ensure(SETTINGS)
        await StateBucket(client, names).ensure(SETTINGS)
        yield Group(client, names)


@pytest.mark.asyncio
async def test_current_is_the_end_of_the_last_complete_transaction(streams: Group) -> None:
    assert await streams.target("current") == DrainTarget(0, 0)
    await streams.publish(1, 1, 3, 3)
    assert await streams.target("current") == DrainTarget(0, 3)


@pytest.mark.asyncio
async def test_a_sequence_is_waited_for_and_inside_a_transaction_means_the_one_before(streams: Group) -> None:
    await streams.publish(1, 1, 3)
    assert [await streams.target(until) for until in ("1", "2", "3", "4")] == [
        DrainTarget(0, 1),
        DrainTarget(0, 1),
        DrainTarget(0, 3),
        None,
    ]


@pytest.mark.asyncio
async def test_a_copy_that_runs_is_waited_for_and_a_finished_one_belongs_to_the_target(streams: Group) -> None:
    await streams.publish(1)
    await streams.copy(CopyState.RUNNING, 0)
    assert await streams.target("current") is None
    await streams.copy(CopyState.FINISHED, 7)
    assert await streams.target("current") == DrainTarget(7, 1)


def test_a_target_is_reached_in_both_streams() -> None:
    target = DrainTarget(snapshot_sequence=7, sequence=3)
    reached = [target.is_reached(Applied(sequence, 0, 0, "", copied)) for sequence, copied in ((3, 7), (4, 8), (3, 6), (2, 7))]
    assert reached == [True, True, False, False]


def test_a_target_is_reached_when_all_tables_are_there() -> None:
    behind = Applied(5, 0, 0, "", 7, catch_up=CatchUp(2, 0, 0, frozenset({7})))
    assert [DrainTarget(7, sequence).is_reached(behind) for sequence in (2, 3)] == [True, False]


@pytest.mark.parametrize("until", ["", "current", "0", "17"])
def test_what_says_where_to_end_is_taken(until: str) -> None:
    check_until(until)


@pytest.mark.parametrize("until", ["now", "-1", "1.5", "²", " 1"])
def test_what_does_not_is_refused(until: str) -> None:
    with pytest.raises(UsageError, match="until-sequence"):
        check_until(until)
