"""What is copied next: largest first, each table its share, small ranges together. A schedule is carried out whatever single
attempts come to: a table in trouble never stops the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgsluice.replicator.snapshot import schedule as schedule_module
from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome, RangeRequest, RangeStatus
from pgsluice.replicator.snapshot.schedule import MOST_FAILURES, MOST_IN_A_TASK, Schedule, ScheduleRun, SettledRanges
from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger, Phase, TableRecord, now
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import SnapshotGoneError, TerminalError, TransientError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames
from tests.replicator.copier import page_range
from tests.servers import NatsServer

RANGE = 1 << 20
RANGES = 3
FIRST, SECOND, THIRD = (1, 1), (1, 2), (1, 3)


def ranges(oid: int, *sizes: int) -> list[RangeRequest]:
    return [RangeRequest(page_range(oid, number, size), 1, b"") for number, size in enumerate(sizes, start=1)]


def oids(taken: list[RangeRequest]) -> list[int]:
    return [request.pages.table_oid for request in taken]


def test_the_largest_table_comes_first_and_has_no_more_than_its_share() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE), ranges(2, RANGE, RANGE, RANGE, RANGE)], workers_per_table=2, range_bytes=RANGE)
    assert [oids(schedule.take()) for _ in range(4)] == [[2], [2], [1], [1]]
    assert schedule.take() == []
    assert not schedule.is_finished


def test_a_released_place_is_taken_by_the_same_table() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE)], workers_per_table=1, range_bytes=RANGE)
    first = schedule.take()
    assert schedule.take() == []
    schedule.release(first)
    assert [request.pages.number for request in schedule.take()] == [2]


def test_small_tables_travel_together_up_to_a_limit() -> None:
    schedule = Schedule([ranges(oid, 8192) for oid in range(1, 41)], workers_per_table=1, range_bytes=64 * RANGE)
    assert [len(schedule.take()) for _ in range(3)] == [MOST_IN_A_TASK, 40 - MOST_IN_A_TASK, 0]


def test_small_ranges_of_one_table_travel_together() -> None:
    schedule = Schedule([ranges(1, *[8192] * 5)], workers_per_table=1, range_bytes=64 * RANGE)
    assert len(schedule.take()) == 5


def test_a_large_range_travels_alone() -> None:
    schedule = Schedule([ranges(1, RANGE, 10), ranges(2, 10)], workers_per_table=4, range_bytes=RANGE)
    assert oids(schedule.take()) == [1]
    assert oids(schedule.take()) == [1, 2]


def test_a_repeated_range_comes_after_the_others_of_its_table() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE)], workers_per_table=1, range_bytes=RANGE)
    first = schedule.take()
    schedule.release(first)
    schedule.repeat(first[0])
    numbers = []
    while taken := schedule.take():
        numbers += [request.pages.number for request in taken]
        schedule.release(taken)
    assert numbers == [2, 1]
    assert schedule.is_finished


def test_of_a_dropped_table_nothing_more_is_taken() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE), ranges(2, RANGE)], workers_per_table=1, range_bytes=RANGE)
    taken = schedule.take()
    schedule.drop(1)
    schedule.release(taken)
    assert oids(schedule.take()) == [2]


def test_nothing_goes_while_a_range_that_was_open_is_not_finished() -> None:
    settled = SettledRanges()
    settled.note(10, frozenset({FIRST, SECOND}))
    settled.note(20, frozenset({SECOND, THIRD}))
    assert settled.removable(applied=100) == 0


def test_what_lies_before_goes_when_the_last_messages_of_the_ranges_open_then_are_applied() -> None:
    settled = SettledRanges()
    settled.note(10, frozenset({FIRST}))
    settled.note(20, frozenset({SECOND}))
    assert settled.removable(applied=19) == 0
    assert settled.removable(applied=20) == 10
    assert settled.removable(applied=20) == 0


def test_of_several_places_the_newest_counts() -> None:
    settled = SettledRanges()
    for sequence in (10, 20, 30):
        settled.note(sequence, frozenset())
    assert settled.removable(applied=25) == 20


def test_a_range_whose_end_lies_before_another_s_moves_nothing_back() -> None:
    settled = SettledRanges()
    settled.note(20, frozenset({FIRST}))
    settled.note(10, frozenset())
    assert settled.removable(applied=19) == 0
    assert settled.removable(applied=20) == 20


def test_a_stream_full_of_ranges_has_room_again_but_for_the_newest() -> None:
    """Two tasks, one range after the other; the two that are open when the stream is full never finish."""
    settled = SettledRanges()
    for number in range(3, 33):
        settled.note(number * 10, frozenset({(1, number), (1, number + 1)}))
    assert settled.removable(applied=1000) == 300


class ScriptedJob:
    """Copies nothing; the first attempts at a range come to the statuses that were asked for, the others to DONE."""

    def __init__(self) -> None:
        self._statuses: dict[tuple[int, int], list[RangeStatus]] = {}
        self.attempts: Counter[tuple[int, int]] = Counter()

    def script(self, oid: int, number: int, *statuses: RangeStatus) -> None:
        self._statuses[oid, number] = list(statuses)

    def __call__(self, ranges: Sequence[RangeRequest]) -> list[RangeOutcome]:
        return [self._outcome(request) for request in ranges]

    def _outcome(self, request: RangeRequest) -> RangeOutcome:
        key = request.pages.table_oid, request.pages.number
        self.attempts[key] += 1
        statuses = self._statuses.get(key, [])
        status = statuses.pop(0) if statuses else RangeStatus.DONE
        if status is RangeStatus.DONE:
            return RangeOutcome(request.pages, status, rows=10, bytes=100, last_sequence=request.pages.number)
        kind = TerminalError if status is RangeStatus.REFUSED else TransientError
        return RangeOutcome(request.pages, status, error=kind(f"{status.value} on purpose", "do something"))


@pytest.fixture
async def ledger(group: str, nats_server: NatsServer) -> AsyncIterator[Ledger]:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.ensure(StreamSettings(1, (), 1 << 20, "none", 60.0))
        yield Ledger(bucket)


@pytest.fixture
def progress(ledger: Ledger) -> TableProgress:
    records = [
        TableRecord(oid, "public", f"t{oid}", Phase.DATA_SYNC, now(), "s", "0/1", ranges=RANGES, bytes_total=RANGES * RANGE)
        for oid in (1, 2)
    ]
    return TableProgress(ledger, records)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "COPIED_RANGE", Pauses(0.001, 0.01))


async def carry_out(job: ScriptedJob, progress: TableProgress) -> ScheduleRun:
    tables = [[RangeRequest(page_range(oid, number, RANGE), 1, b"") for number in range(1, RANGES + 1)] for oid in (1, 2)]
    with ThreadPoolExecutor(4) as threads:
        run = ScheduleRun(Schedule(tables, workers_per_table=2, range_bytes=RANGE), job, 3, threads, progress)
        await run.run()
    return run


def phases(progress: TableProgress) -> dict[int, Phase]:
    return {record.oid: record.phase for record in progress.records}


async def test_every_range_is_copied_and_counted_once(progress: TableProgress, ledger: Ledger) -> None:
    job = ScriptedJob()
    await carry_out(job, progress)
    assert set(job.attempts.values()) == {1}
    assert phases(progress) == {1: Phase.FINISHED_COPY, 2: Phase.FINISHED_COPY}
    assert [(record.rows, record.bytes, record.ranges_done) for record in progress.records] == [(30, 300, 3)] * 2
    await progress.write()
    assert (await ledger.load()).tables == {record.oid: record for record in progress.records}


async def test_a_range_that_fails_is_tried_again(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 2, *[RangeStatus.FAILED] * (MOST_FAILURES - 1))
    await carry_out(job, progress)
    assert job.attempts[1, 2] == MOST_FAILURES
    assert phases(progress) == {1: Phase.FINISHED_COPY, 2: Phase.FINISHED_COPY}


async def test_a_range_that_keeps_failing_gives_up_its_table_only(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 2, *[RangeStatus.FAILED] * 10)
    await carry_out(job, progress)
    assert job.attempts[1, 2] == MOST_FAILURES
    assert phases(progress) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}
    [errored] = progress.errored
    assert (errored.error, errored.remedy) == (
        "failed on purpose",
        "do something; then say 'pgsluice tables retry' while the group streams, or start with --retry-errored",
    )


async def test_a_refused_range_gives_up_its_table_at_once(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 1, RangeStatus.REFUSED)
    await carry_out(job, progress)
    assert job.attempts[1, 1] == 1
    assert phases(progress) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}


async def test_an_outage_is_waited_for_however_often(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 1, *[RangeStatus.UNAVAILABLE] * (2 * MOST_FAILURES))
    await carry_out(job, progress)
    assert job.attempts[1, 1] == 2 * MOST_FAILURES + 1
    assert phases(progress) == {1: Phase.FINISHED_COPY, 2: Phase.FINISHED_COPY}


async def test_a_rewritten_table_waits_for_another_snapshot_and_the_others_finish(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 1, RangeStatus.REWRITTEN)
    run = await carry_out(job, progress)
    assert run.rewritten == {1}
    assert phases(progress) == {1: Phase.DATA_SYNC, 2: Phase.FINISHED_COPY}


async def test_what_other_ranges_of_a_table_that_was_given_up_come_to_changes_nothing(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 1, RangeStatus.REFUSED)
    for number in (2, 3):
        job.script(1, number, RangeStatus.UNAVAILABLE, RangeStatus.REWRITTEN)
    run = await carry_out(job, progress)
    assert phases(progress) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}
    assert run.rewritten == set()
    assert run.settled.removable(applied=RANGES) == RANGES


async def test_a_dead_snapshot_ends_it(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 1, RangeStatus.SNAPSHOT_GONE)
    with pytest.raises(SnapshotGoneError):
        await carry_out(job, progress)
    assert Phase.ERRORED not in phases(progress).values()
