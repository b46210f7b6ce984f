"""Two processes, one worker name."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import lease_key
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.positions import lease as lease_module
from pgsluice.worker.positions.lease import Lease
from tests.servers import NatsServer
from tests.state_bucket import seal_bucket
from tests.waiting import wait_until_async

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)


@pytest_asyncio.fixture
async def bucket(nats_server: NatsServer, group: str) -> AsyncIterator[StateBucket]:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.ensure(SETTINGS)
        yield bucket


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lease, ten times as fast."""
    for name in ("LEASE_DURATION_S", "RENEWAL_INTERVAL_S", "POLL_INTERVAL_S"):
        monkeypatch.setattr(lease_module, name, getattr(lease_module, name) / 10)


def duration_s() -> float:
    """As it is now: ``quick`` may have changed it."""
    value = vars(lease_module)["LEASE_DURATION_S"]
    assert isinstance(value, float)
    return value


def not_expected(error: BaseException) -> None:
    raise AssertionError("the lease was lost") from error


@pytest.mark.usefixtures("quick")
async def test_a_second_holder_waits_until_the_first_releases(bucket: StateBucket) -> None:
    first, second = Lease(bucket, "w"), Lease(bucket, "w")
    await first.acquire(not_expected)
    waiting = asyncio.create_task(second.acquire(not_expected))
    done, _ = await asyncio.wait({waiting}, timeout=2 * duration_s())
    assert not done
    await first.release()
    await asyncio.wait_for(waiting, 120)
    await second.release()


@pytest.mark.usefixtures("quick")
async def test_the_lease_of_a_silent_holder_elsewhere_is_taken_after_its_duration(bucket: StateBucket) -> None:
    await bucket.put(lease_key("w"), {"host": "elsewhere", "boot": "another", "pid": 1, "started": "1"})
    lease = Lease(bucket, "w")
    await asyncio.wait_for(lease.acquire(not_expected), 5 * duration_s())
    await lease.release()


async def test_the_lease_of_a_process_that_died_on_this_host_is_taken_at_once(bucket: StateBucket) -> None:
    script = "import orjson, os; from pgsluice.worker.positions import lease; os.write(1, orjson.dumps(lease._identity()))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE, cwd=os.getcwd())
    died, _ = await process.communicate()
    await bucket.put(lease_key("w"), orjson.loads(died))
    lease = Lease(bucket, "w")
    await asyncio.wait_for(lease.acquire(not_expected), duration_s() / 2)
    await lease.release()


@pytest.mark.usefixtures("quick")
async def test_a_holder_whose_lease_was_taken_is_told(bucket: StateBucket) -> None:
    ended: asyncio.Queue[BaseException] = asyncio.Queue()
    lease = Lease(bucket, "w")
    await lease.acquire(ended.put_nowait)
    await bucket.put(lease_key("w"), {"host": "elsewhere", "boot": "another", "pid": 1, "started": "1"})
    error = await asyncio.wait_for(ended.get(), 120)
    assert not lease.is_held
    assert isinstance(error, TransientError)
    assert "another process took over worker 'w'" in str(error)


async def test_a_holder_that_is_overtaken_while_it_releases_leaves_the_lease_of_the_next_one(
    nats_server: NatsServer, bucket: StateBucket, group: str
) -> None:
    taken = {"host": "elsewhere", "boot": "another", "pid": 1, "started": "1"}

    class Overtaken(StateBucket):
        async def delete(self, key: str, revision: int | None = None) -> bool:
            await bucket.put(key, taken)
            return await super().delete(key, revision)

    async with connected(nats_server.settings(), "test") as client:
        lease = Lease(Overtaken(client, GroupNames(group)), "w")
        await lease.acquire(not_expected)
        await lease.release()
    entry = await bucket.get(lease_key("w"))
    assert entry is not None
    assert orjson.loads(entry.value) == taken


async def test_a_lease_that_was_not_renewed_for_its_duration_is_held_no_longer(
    bucket: StateBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(bucket, "w")
    assert not lease.is_held
    await lease.acquire(not_expected)
    assert lease.is_held
    monkeypatch.setattr(lease_module, "LEASE_DURATION_S", 0.0)
    assert not lease.is_held, "another process may have it"
    await lease.release()


async def test_who_lost_the_lease_gives_back_nothing_of_the_next_holder(bucket: StateBucket) -> None:
    lease = Lease(bucket, "w")
    await lease.acquire(not_expected)
    await bucket.put(lease_key("w"), {"host": "elsewhere", "boot": "another", "pid": 1, "started": "1"})
    await lease.release()
    assert await bucket.get(lease_key("w")) is not None


@pytest.mark.usefixtures("quick")
async def test_whatever_else_ends_the_renewal_is_told_too(nats_server: NatsServer, bucket: StateBucket, group: str) -> None:
    ended: asyncio.Queue[BaseException] = asyncio.Queue()
    lease = Lease(bucket, "w")
    await lease.acquire(ended.put_nowait)
    async with connected(nats_server.settings(), "test") as client:
        await seal_bucket(client, group)
        assert "JetStream refuses the state bucket" in str(await asyncio.wait_for(ended.get(), 120))


@pytest.mark.usefixtures("quick")
async def test_a_broker_that_is_away_is_waited_for(group: str, caplog: pytest.LogCaptureFixture) -> None:
    with NatsServer() as server:
        async with connected(server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(group))
            await bucket.ensure(SETTINGS)
            server.kill()
            lease = Lease(bucket, "w")
            waiting = asyncio.create_task(lease.acquire(not_expected))
            await wait_until_async(lambda: is_logged(caplog, "waiting for the broker to give the lease"), what="the warning")
            server.start()
            await asyncio.wait_for(waiting, 120)
            assert await bucket.get(lease_key("w")) is not None
            await lease.release()


async def is_logged(caplog: pytest.LogCaptureFixture, message: str) -> bool:
    return any(record.message == message for record in caplog.records)
