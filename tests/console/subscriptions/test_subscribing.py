"""An order about a subscription holds until its worker has obeyed, whatever people order after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pgsluice.console.subscriptions.subscribing import set_paused
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.subscriptions.subscription_records import (
    ReceiversRecord,
    ReceiverState,
    SubscriptionRecord,
    receivers_key,
    subscription_key,
)
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer

ID = "0123456789abcdef"
RECORD = SubscriptionRecord("ann", "subscriptions", "http://127.0.0.1", "http://127.0.0.1/one")


@pytest.fixture
async def bucket(nats_server: NatsServer, group: str) -> AsyncIterator[StateBucket]:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.make(1)
        await bucket.put(subscription_key(ID), RECORD)
        yield bucket


async def record_in(bucket: StateBucket) -> SubscriptionRecord:
    entry = await bucket.read(subscription_key(ID), SubscriptionRecord)
    assert entry is not None
    return entry.value


async def resume(bucket: StateBucket, *, skip_to: int = 0, back_to: int | None = None) -> tuple[int, int, int | None]:
    await set_paused(bucket, ID, "ann", paused=False, skip_to=skip_to, back_to=back_to)
    record = await record_in(bucket)
    return record.resumed, record.skips, record.back_to


async def test_a_replay_that_no_worker_has_seen_outlives_a_pause_and_a_resume(bucket: StateBucket) -> None:
    assert await resume(bucket, back_to=5) == (1, 0, 5)
    await set_paused(bucket, ID, "ann", paused=True)
    assert await resume(bucket) == (2, 0, 5)
    assert await resume(bucket, back_to=9) == (3, 0, 5)
    assert await resume(bucket, back_to=2) == (4, 0, 2)
    assert await resume(bucket, skip_to=20) == (5, 20, None)
    assert await resume(bucket) == (6, 20, None)


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_replay_that_was_obeyed_is_not_repeated_by_a_resume(bucket: StateBucket, is_live: bool) -> None:
    assert await resume(bucket, back_to=5) == (1, 0, 5)
    obeyed = ReceiversRecord.of({ID: 1}, {}) if is_live else ReceiversRecord.of({}, {ID: replace(ReceiverState(7), resumed=1)})
    await bucket.put(receivers_key("subscriptions"), obeyed)
    assert await resume(bucket) == (2, 0, None)
