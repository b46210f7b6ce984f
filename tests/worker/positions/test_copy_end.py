"""When a worker may say to its sink that a copy is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.positions.target import CopyEnd
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied
from tests.servers import NatsServer


@pytest_asyncio.fixture
async def bucket(nats_server: NatsServer, group: str) -> AsyncIterator[StateBucket]:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.ensure(StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60))
        yield bucket


async def store(bucket: StateBucket, state: CopyState, last_sequence: int) -> None:
    record = SnapshotRecord("first", "0/1", state, CopyMode.COPY, "2026-01-31", "", last_sequence, "1", "shop", "")
    await Ledger(bucket).store_snapshot(record)


def copied(snapshot_sequence: int) -> Applied:
    return Applied(0, 0, 0, "", snapshot_sequence)


@pytest.mark.asyncio
async def test_a_group_that_never_copied_has_no_end_of_a_copy(bucket: StateBucket) -> None:
    assert not await CopyEnd(bucket).is_reached(NOTHING_APPLIED)


@pytest.mark.asyncio
async def test_the_end_is_reached_when_the_copy_is_finished_and_applied(bucket: StateBucket) -> None:
    end = CopyEnd(bucket)
    await store(bucket, CopyState.RUNNING, 0)
    assert not await end.is_reached(copied(7))
    await store(bucket, CopyState.FINISHED, 7)
    assert not await end.is_reached(copied(6))
    assert await end.is_reached(copied(7))


@pytest.mark.asyncio
async def test_an_end_is_handled_once_and_that_of_a_later_copy_again(bucket: StateBucket) -> None:
    end = CopyEnd(bucket)
    await store(bucket, CopyState.FINISHED, 7)
    assert end.may_be_reached(copied(7))
    end.note_handled(copied(7))
    assert not end.may_be_reached(copied(7))
    assert not await end.is_reached(copied(7))
    await store(bucket, CopyState.FINISHED, 9)
    assert not await end.is_reached(copied(8))
    assert await end.is_reached(copied(9))
    assert await CopyEnd(bucket).is_reached(copied(9))
