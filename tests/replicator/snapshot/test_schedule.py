"""What is copied next: largest first, each table its share, small ranges together. A schedule is carried out whatever single
attempts come to: a table in trouble never stops the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome, RangeRequest, RangeStatus
from pgsluice.replicator.snapshot.held_ranges import HeldRanges
from pgsluice.replicator.snapshot.schedule import MOST_FAILURES, Schedule, ScheduleRun
from pgsluice.replicator.snapshot.stream_share import MOST_RANGES, Room
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
    assert [len(schedule.take()) for _ in range(3)] == [MOST_RANGES, 40 - MOST_RANGES, 0]


def test_small_ranges_of_one_table_travel_together() -> None:
    schedule = Schedule([ranges(1, *[8192] * 5)], workers_per_table=1, range_bytes=64 * RANGE)
    assert len(schedule.take()) == 5


def test_a_large_range_travels_alone() -> None:
    schedule = Schedule([ranges(1, RANGE, 10), ranges(2, 10)], workers_per_table=4, range_bytes=RANGE)
    assert oids(schedule.take()) == [1]
    assert oids(schedule.take()) == [1, 2]


def take_all(schedule: Schedule) -> list[int]:
    """The numbers of the ranges that are left, one task after the other."""
    numbers = []
    while taken := schedule.take():
        numbers += [request.pages.number for request in taken]
        schedule.release(taken)
    return numbers


def test_a_repeated_range_comes_before_all_that_are_not_begun() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE, RANGE), ranges(2, 2 * RANGE)], workers_per_table=2, range_bytes=RANGE)
    first, second = schedule.take(), schedule.take()
    schedule.release(second)
    schedule.repeat(second[0])
    schedule.release(first)
    schedule.repeat(first[0])
    assert take_all(schedule) == [1, 2, 3, 1]
    assert schedule.is_finished


def test_nothing_is_begun_while_a_range_waits_whose_table_has_its_share() -> None:
    """Else a range that fails again and again would have more and more begun beside it."""
    schedule = Schedule([ranges(1, RANGE, RANGE), ranges(2, RANGE)], workers_per_table=1, range_bytes=RANGE)
    first = schedule.take()
    schedule.repeat(ranges(1, RANGE, RANGE)[1])
    assert schedule.take() == []
    schedule.release(first)
    assert oids(schedule.take()) == [1]
    assert oids(schedule.take()) == [2]


def test_ranges_that_travel_together_have_room_for_one_message_each_and_are_repeated_alone() -> None:
    schedule = Schedule([ranges(1, 8192, 8192, 8192)], workers_per_table=4, range_bytes=64 * RANGE)
    together = schedule.take()
    assert [request.room for request in together] == [Room.MESSAGE] * 3
    schedule.release(together)
    for request in together[:2]:
        schedule.repeat(request)
    again = [schedule.take(), schedule.take()]
    assert [[(request.pages.number, request.room) for request in taken] for taken in again] == [
        [(1, Room.SHARE)],
        [(2, Room.SHARE)],
    ]


def test_what_may_be_stored_in_part_is_repeated_before_what_is_not() -> None:
    """No more bodies than there are tasks are then in the stream in part."""
    schedule = Schedule([ranges(1, RANGE, RANGE), ranges(2, 10, 10)], workers_per_table=1, range_bytes=RANGE)
    large, small = schedule.take(), schedule.take()
    schedule.release(small)
    schedule.repeat(small[0])
    schedule.release(large)
    schedule.repeat(large[0])
    assert [oids(schedule.take()) for _ in range(2)] == [[1], [2]]


def test_a_range_that_needs_room_gets_more_and_at_last_runs_alone() -> None:
    schedule = Schedule([ranges(1, 10, 10), ranges(2, RANGE)], workers_per_table=4, range_bytes=RANGE)
    other, together = schedule.take(), schedule.take()
    schedule.release(together)
    schedule.give_room(together[0])
    [own] = schedule.take()
    assert (own.pages.number, own.room) == (1, Room.SHARE)
    schedule.release([own])
    schedule.give_room(own)
    assert schedule.take() == [], "another task runs"
    schedule.release(other)
    [alone] = schedule.take()
    assert (alone.pages.number, alone.room) == (1, Room.STREAM)
    schedule.repeat(other[0])
    assert schedule.take() == [], "it runs alone"
    schedule.release([alone])
    assert oids(schedule.take()) == [2]


def test_a_range_that_failed_alone_is_repeated_alone_and_a_second_one_after_it() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE)], workers_per_table=4, range_bytes=RANGE)
    for taken in [schedule.take(), schedule.take()]:
        schedule.release(taken)
        schedule.give_room(taken[0])
    first = schedule.take()
    schedule.release(first)
    schedule.repeat(first[0])
    assert take_all(schedule) == [1, 2]


def test_of_a_dropped_table_the_ranges_that_wait_to_be_repeated_are_given_back() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE, RANGE), ranges(2, RANGE)], workers_per_table=3, range_bytes=RANGE)
    first, second = schedule.take(), schedule.take()
    for taken in (first, second):
        schedule.release(taken)
    schedule.repeat(first[0])
    schedule.give_room(second[0])
    assert [request.pages.number for request in schedule.drop(1)] == [1, 2]
    assert oids(schedule.take()) == [2]


def test_of_a_dropped_table_nothing_more_is_taken() -> None:
    schedule = Schedule([ranges(1, RANGE, RANGE), ranges(2, RANGE)], workers_per_table=1, range_bytes=RANGE)
    taken = schedule.take()
    schedule.drop(1)
    schedule.release(taken)
    assert oids(schedule.take()) == [2]


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


SHORT = Pauses(0.001, 0.01)


async def carry_out(job: ScriptedJob, progress: TableProgress, held: HeldRanges | None = None, **patience: int) -> ScheduleRun:
    tables = [[RangeRequest(page_range(oid, number, RANGE), 1, b"") for number in range(1, RANGES + 1)] for oid in (1, 2)]
    with ThreadPoolExecutor(4) as threads:
        schedule = Schedule(tables, workers_per_table=2, range_bytes=RANGE)
        in_hand = held or HeldRanges(GroupNames("g"), "s", 0)
        run = ScheduleRun(schedule, job, 3, threads, progress, SHORT, in_hand, **patience)  # type: ignore[arg-type]
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
        "do something; then run 'pgsluice tables retry' while the group streams, or start with --retry-errored",
    )


async def test_a_refused_range_gives_up_its_table_at_once(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 1, RangeStatus.REFUSED)
    await carry_out(job, progress)
    assert job.attempts[1, 1] == 1
    assert phases(progress) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}


async def test_ranges_that_a_query_fails_on_stay_in_hand_while_the_others_are_copied(progress: TableProgress) -> None:
    job, held = ScriptedJob(), HeldRanges(GroupNames("g"), "s", 0)
    job.script(1, 1, RangeStatus.UNREADABLE)
    job.script(1, 2, RangeStatus.TIMED_OUT, RangeStatus.TIMED_OUT)
    run = await carry_out(job, progress, held, most_unreadable=2, most_timeouts=2)
    assert sorted((each.pages.number, each.status) for each in run.unreadable) == [
        (1, RangeStatus.UNREADABLE),
        (2, RangeStatus.TIMED_OUT),
    ]
    assert (job.attempts[1, 1], job.attempts[1, 2], job.attempts[1, 3]) == (1, 2, 1)
    assert sorted(held.in_hand) == ["pgsluice.g.snapshot.s.1.1", "pgsluice.g.snapshot.s.1.2"]
    assert phases(progress) == {1: Phase.DATA_SYNC, 2: Phase.FINISHED_COPY}


async def test_one_more_than_may_be_unreadable_gives_up_the_table(progress: TableProgress) -> None:
    job = ScriptedJob()
    for number in (1, 2):
        job.script(1, number, RangeStatus.UNREADABLE)
    await carry_out(job, progress, most_unreadable=1)
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
    held = HeldRanges(GroupNames("g"), "s", 0)
    run = await carry_out(job, progress, held)
    assert phases(progress) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}
    assert run.rewritten == set()
    assert held.in_hand == []


async def test_of_a_range_that_is_done_its_end_is_known_and_none_is_in_hand_at_the_end(progress: TableProgress) -> None:
    job, held = ScriptedJob(), HeldRanges(GroupNames("g"), "s", 0)
    job.script(1, 2, RangeStatus.UNAVAILABLE)
    await carry_out(job, progress, held)
    assert held.in_hand == []
    assert sorted((ended.subject, ended.last_sequence) for ended in held.ended) == [
        (f"pgsluice.g.snapshot.s.{oid}.{number}", number) for oid in (1, 2) for number in (1, 2, 3)
    ]


async def test_a_range_that_needs_room_is_copied_without_a_pause_and_is_no_failure(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 2, *[RangeStatus.NEEDS_ROOM] * (MOST_FAILURES + 1))
    await carry_out(job, progress)
    assert job.attempts[1, 2] == MOST_FAILURES + 2
    assert phases(progress) == {1: Phase.FINISHED_COPY, 2: Phase.FINISHED_COPY}


async def test_a_dead_snapshot_ends_it(progress: TableProgress) -> None:
    job = ScriptedJob()
    job.script(1, 1, RangeStatus.SNAPSHOT_GONE)
    with pytest.raises(SnapshotGoneError):
        await carry_out(job, progress)
    assert Phase.ERRORED not in phases(progress).values()
