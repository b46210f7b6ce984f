"""What a process tells of itself is there for others: at once when it changes, to its end, and never in place of another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pgsluice.replicator.tasks import cancel
from pgsluice.shared.broker import process_report
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, ProcessRecord, process_key
from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError
from pgsluice.shared.process.pulse import Activity, Pulse
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until_async

KEY = process_key(REPLICATOR_UNIT)
OTHER = ProcessRecord("elsewhere", 1, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00", Activity.WORKING)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_report, "LOOK_INTERVAL_S", 0.02)


async def told(bucket: StateBucket) -> ProcessRecord | None:
    entry = await bucket.read(KEY, ProcessRecord)
    return None if entry is None else entry.value


async def wait_for(bucket: StateBucket, holds: Callable[[ProcessRecord], bool]) -> ProcessRecord:
    found: list[ProcessRecord] = []

    async def is_there() -> bool:
        record = await told(bucket)
        if record is None or not holds(record):
            return False
        found.append(record)
        return True

    await wait_until_async(is_there, deadline_s=20.0, what="a record of the process")
    return found[0]


@asynccontextmanager
async def reported(nats: NatsServer, group: str) -> AsyncIterator[tuple[StateBucket, ProcessReport, Pulse, asyncio.Task[None]]]:
    """A report that runs."""
    async with connected(nats.settings(), "test") as client:
        bucket, pulse = StateBucket(client, GroupNames(group)), Pulse()
        report = ProcessReport(REPLICATOR_UNIT, pulse, lambda: bucket)
        task = asyncio.ensure_future(report.run())
        try:
            yield bucket, report, pulse, task
        finally:
            await cancel([task])


def test_others_read_what_a_process_waits_for_and_how_it_ended(nats_server: NatsServer, group: str) -> None:
    ensure_bucket(nats_server.settings(), group)

    async def scenario() -> None:
        async with reported(nats_server, group) as (bucket, report, pulse, task):
            assert (await wait_for(bucket, lambda record: True)).activity is Activity.STARTING
            pulse.activity, report.acknowledged = Activity.WORKING, 7
            pulse.waits(TransientError("the target is away", "wait", Cause.TARGET), 2.0)
            record = await wait_for(bucket, lambda record: record.wait is not None)
            assert record.wait is not None
            assert (record.wait.cause, record.wait.reason) == (Cause.TARGET, "the target is away: wait")
            assert record.wait.next_attempt_at > record.wait.since
            assert (record.activity, record.acknowledged, record.exit_code) == (Activity.WORKING, 7, None)
            pulse.progressed(idle=True)
            await wait_for(bucket, lambda record: record.wait is None)
            task.cancel()
            await report.tell_end(TerminalError("the slot is lost", "start anew"))
            record = await wait_for(bucket, lambda record: record.activity is Activity.ENDING)
            assert (record.exit_code, record.fact, record.remedy) == (70, "the slot is lost", "start anew")

    asyncio.run(scenario())


def test_what_nobody_expected_is_told_without_its_text(nats_server: NatsServer, group: str) -> None:
    ensure_bucket(nats_server.settings(), group)

    async def scenario() -> None:
        async with reported(nats_server, group) as (bucket, report, _, task):
            task.cancel()
            await report.tell_end(ValueError("a row's value"))
            record = await wait_for(bucket, lambda record: record.exit_code is not None)
            assert record.exit_code == 70
            assert "ValueError" in record.fact
            assert "a row's value" not in record.fact + record.remedy

    asyncio.run(scenario())


def test_only_progress_is_not_written_again_and_again(nats_server: NatsServer, group: str) -> None:
    ensure_bucket(nats_server.settings(), group)

    async def scenario() -> None:
        async with reported(nats_server, group) as (bucket, report, pulse, _):
            await wait_for(bucket, lambda record: True)
            before = (await bucket.end()).revision
            for _ in range(20):
                pulse.progressed(idle=False)
                await asyncio.sleep(process_report.LOOK_INTERVAL_S)
            assert (await bucket.end()).revision == before
            report.acknowledged = 1
            await wait_for(bucket, lambda record: record.acknowledged == 1 and not record.idle)

    asyncio.run(scenario())


def test_another_process_that_lives_keeps_its_record_until_the_unit_is_ours(nats_server: NatsServer, group: str) -> None:
    ensure_bucket(nats_server.settings(), group)

    async def scenario() -> None:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(group))
            await bucket.put(KEY, OTHER)
            report = ProcessReport(REPLICATOR_UNIT, Pulse(), lambda: bucket)
            await report._tell_news()
            await report.tell_end(TransientError("the slot is read by another process"))
            assert await told(bucket) == OTHER
            report.is_claimed = True
            await report._tell_news()
            assert (await wait_for(bucket, lambda record: record != OTHER)).host != OTHER.host

    asyncio.run(scenario())


@pytest.mark.parametrize("change", [{"exit_code": 75}, {"host": "HERE"}], ids=["ended", "killed here"])
def test_a_process_that_has_ended_is_replaced(nats_server: NatsServer, group: str, change: dict[str, object]) -> None:
    ensure_bucket(nats_server.settings(), group)

    async def scenario() -> None:
        async with reported(nats_server, group) as (bucket, report, _, task):
            task.cancel()
            host = report._record().host
            gone = replace(OTHER, pid=2**22 + 1, **{key: host if value == "HERE" else value for key, value in change.items()})  # type: ignore[arg-type]
            await bucket.put(KEY, gone)
            await report._tell_news()
            assert await told(bucket) != gone

    asyncio.run(scenario())


def test_a_group_that_is_dropped_under_a_process_ends_it(nats_server: NatsServer, group: str) -> None:
    ensure_bucket(nats_server.settings(), group)

    async def scenario() -> None:
        async with reported(nats_server, group) as (bucket, report, _, task):
            await wait_for(bucket, lambda record: True)
            await bucket.destroy()
            report.acknowledged = 1
            with pytest.raises(PgsluiceError):
                await asyncio.wait_for(task, 20.0)

    asyncio.run(scenario())
