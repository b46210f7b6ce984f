"""What a worker finds of its own earlier reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from pgsluice.rules.routing import Routing
from pgsluice.rules.transformation import Transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import (
    MOST_BATCHES,
    BatchesRecord,
    BatchRecord,
    MissedReport,
    ReadyRecord,
    UnchangedRows,
    WorkerReport,
    batches_key,
    ready_key,
    worker_key,
)
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import POSTGRES_EPOCH
from pgsluice.worker.positions import report as report_module
from pgsluice.worker.positions.missed_changes import REPORTED_TABLES
from pgsluice.worker.positions.report import ProgressReport, RecentLatencies, check_report
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied
from tests.servers import NatsServer
from tests.state_bucket import seal_bucket
from tests.waiting import wait_until_async
from tests.worker.positions.test_missed_changes import SINCE, missed_changes, route
from tests.worker.positions.test_ready_tables import FINISHED, ORDERS, ledger


@pytest_asyncio.fixture
async def bucket(nats_server: NatsServer, group: str) -> AsyncIterator[StateBucket]:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.ensure(StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60))
        yield bucket


def not_expected(error: BaseException) -> None:
    raise AssertionError("the report ended") from error


def batch(changes: int) -> BatchRecord:
    return BatchRecord(SINCE, "changes", changes, 0.2, 0.0, 0.1, 0.1)


async def report(bucket: StateBucket, applied: Applied) -> None:
    progress = ProgressReport(bucket, "postgres", applied)
    await progress.start(not_expected)
    await progress.stop()


@pytest.mark.asyncio
async def test_a_worker_without_a_report_or_with_one_of_nothing_may_begin(bucket: StateBucket) -> None:
    await check_report(bucket, "postgres", NOTHING_APPLIED)
    await report(bucket, NOTHING_APPLIED)
    await check_report(bucket, "postgres", NOTHING_APPLIED)


@pytest.mark.asyncio
async def test_changes_that_met_no_row_are_told_those_that_should_have_met_one_first(bucket: StateBucket) -> None:
    rules = Transformation(routing=Routing([route("routed")]))
    progress = ProgressReport(bucket, "postgres", NOTHING_APPLIED, rules)
    missed = [missed_changes(oid, f"t{oid}", changes=oid) for oid in range(1, REPORTED_TABLES + 3)]
    progress.note_missed([missed_changes(99, "routed", changes=99), *missed])
    await progress.start(not_expected)
    await progress.stop()
    entry = await bucket.read(worker_key("postgres"), WorkerReport)
    assert entry is not None
    told = entry.value.missed
    assert [each.changes for each in told] == list(range(REPORTED_TABLES + 2, 2, -1))
    assert told[0] == MissedReport(oid=22, table="public.t22", changes=22, since=SINCE, expected=False)
    assert entry.value.missed_tables == REPORTED_TABLES + 3


@pytest.mark.asyncio
async def test_whatever_is_news_is_told_soon_and_so_is_what_comes_after_it(
    bucket: StateBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "REPORT_INTERVAL_S", 0.0)  # nothing but news has anything told
    progress = ProgressReport(bucket, "postgres", NOTHING_APPLIED)
    await progress.start(not_expected)

    async def is_told(**fields: object) -> bool:
        entry = await bucket.read(worker_key("postgres"), WorkerReport)
        return entry is not None and all(getattr(entry.value, name) == value for name, value in fields.items())

    for batches in (1, 2):
        progress.note(Applied(batches, 1, 1, "then"), batch(changes=1))
        await wait_until_async(lambda batches=batches: is_told(batches=batches), what="the batch in the report")  # type: ignore[misc]
        progress.note_missed([missed_changes(1, "t", changes=batches)] * batches)
        await wait_until_async(lambda batches=batches: is_told(missed_tables=batches), what="what met no row")  # type: ignore[misc]
    await progress.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("reported", [Applied(7, 1, 1, "then"), Applied(0, 0, 0, "", snapshot_sequence=3)])
async def test_a_sink_that_lost_the_position_of_its_worker_is_refused(bucket: StateBucket, reported: Applied) -> None:
    await report(bucket, reported)
    await check_report(bucket, "postgres", reported)
    await check_report(bucket, "postgres", Applied(0, 0, 0, "then", snapshot_sequence=1))
    await check_report(bucket, "another", NOTHING_APPLIED)
    said = rf"no position of worker 'postgres'.*message {reported.sequence} .*message {reported.snapshot_sequence}: .*--name"
    with pytest.raises(TerminalError, match=said):
        await check_report(bucket, "postgres", NOTHING_APPLIED)


@pytest.mark.asyncio
async def test_when_copied_rows_were_applied_is_told_also_by_a_process_that_came_later(bucket: StateBucket) -> None:
    async def told(applied: Applied, *batches: tuple[Applied, UnchangedRows | None]) -> tuple[str, UnchangedRows | None]:
        progress = ProgressReport(bucket, "postgres", applied)
        await progress.start(not_expected)
        for after, unchanged in batches:
            progress.note_unchanged(unchanged)
            progress.note(after, batch(changes=1))
        await progress.stop()
        entry = await bucket.read(worker_key("postgres"), WorkerReport)
        assert entry is not None
        return entry.value.copied_at, entry.value.unchanged

    rows, changes = Applied(1, 1, 1, "then", snapshot_sequence=3), Applied(2, 1, 1, "then", snapshot_sequence=3)
    assert await told(NOTHING_APPLIED) == ("", None)
    first, unchanged = await told(NOTHING_APPLIED, (rows, UnchangedRows(3, 2)))
    assert abs((datetime.now(UTC) - datetime.fromisoformat(first)).total_seconds()) < 60
    assert unchanged == UnchangedRows(3, 2)
    assert await told(rows, (changes, None)) == (first, unchanged)
    assert await told(Applied(2, 1, 1, "then", snapshot_sequence=4)) == ("", None)


@pytest.mark.asyncio
async def test_since_when_tables_are_ready_is_written_when_it_changes_and_taken_up_by_the_next_process(
    bucket: StateBucket,
) -> None:
    async def told() -> tuple[int, dict[tuple[int, int], str]]:
        entry = await bucket.read(ready_key("postgres"), ReadyRecord)
        return (0, {}) if entry is None else (entry.revision, entry.value.by_copy())

    tables, copied = ledger(FINISHED, ORDERS), Applied(0, 0, 0, "", snapshot_sequence=9)
    progress = ProgressReport(bucket, "postgres", NOTHING_APPLIED)
    progress.note_tables(tables)
    assert progress.waits_for_tables
    await progress.start(not_expected)
    progress.note(copied, batch(changes=1))
    progress.note(replace(copied, sequence=3, commit_lsn=0x80), batch(changes=1))
    await progress.stop()
    revision, moments = await told()
    assert list(moments) == [(ORDERS.oid, ORDERS.last_sequence)]
    later = ProgressReport(bucket, "postgres", replace(copied, sequence=3, commit_lsn=0x80))
    await later.start(not_expected)
    later.note_tables(tables)
    later.note(replace(copied, sequence=4, commit_lsn=0x90), batch(changes=1))
    await later.stop()
    assert await told() == (revision, moments)


@pytest.mark.asyncio
async def test_whatever_ends_the_report_is_told(nats_server: NatsServer, bucket: StateBucket, group: str) -> None:
    ended: asyncio.Queue[BaseException] = asyncio.Queue()
    progress = ProgressReport(bucket, "postgres", NOTHING_APPLIED)
    await progress.start(ended.put_nowait)
    async with connected(nats_server.settings(), "test") as client:
        await seal_bucket(client, group)
        progress.note(Applied(1, 1, 1, "then"), batch(changes=1))
        assert "JetStream refuses the state bucket" in str(await asyncio.wait_for(ended.get(), 120))


@pytest.mark.asyncio
async def test_what_could_not_be_told_is_told_as_soon_as_it_can_be(
    bucket: StateBucket, nats_server: NatsServer, group: str
) -> None:
    progress = ProgressReport(bucket, "postgres", NOTHING_APPLIED)
    await progress.start(not_expected)
    async with connected(nats_server.settings(), "test") as client:
        await client.jetstream().delete_stream(f"KV_{GroupNames(group).bucket}")
        progress.note(Applied(1, 1, 1, "then"), batch(changes=1))
        with pytest.raises(TransientError):  # and so did the report
            await bucket.put("probe", {})
    await bucket.ensure(StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60))

    async def is_told() -> bool:
        entry = await bucket.read(worker_key("postgres"), WorkerReport)
        return entry is not None and entry.value.sequence == 1

    await wait_until_async(is_told, deadline_s=20, what="the report")
    await progress.stop()


def test_latencies_are_those_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("pgsluice.worker.positions.report.time.monotonic", lambda: clock[0])
    latencies = RecentLatencies()
    assert latencies.quantile(0.5) is None
    now = (datetime.now(UTC) - POSTGRES_EPOCH).total_seconds()
    for seconds_ago in (*[1.0] * 98, 50.0, 60.0):
        latencies.note(int((now - seconds_ago) * 1e6))
    assert latencies.quantile(0.5) == pytest.approx(1.0, abs=0.5)
    assert latencies.quantile(0.99) == pytest.approx(60.0, abs=0.5)
    latencies.note(int((now + 3600) * 1e6))  # a source whose clock is ahead
    assert latencies.quantile(0.0) == 0.0
    clock[0] += report_module.LATENCY_WINDOW_S + 1
    assert latencies.quantile(0.5) is None


@pytest.mark.asyncio
async def test_the_newest_batches_are_told_and_no_more_of_them(bucket: StateBucket) -> None:
    progress = ProgressReport(bucket, "postgres", NOTHING_APPLIED)
    await progress.start(not_expected)
    assert await bucket.read(batches_key("postgres"), BatchesRecord) is None
    for number in range(1, MOST_BATCHES + 6):
        progress.note(Applied(number, 1, 1, "then"), batch(changes=number))
    await progress.stop()
    entry = await bucket.read(batches_key("postgres"), BatchesRecord)
    assert entry is not None
    assert [each.changes for each in entry.value.batches] == list(range(6, MOST_BATCHES + 6))
