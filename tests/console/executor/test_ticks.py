"""When schedules have their ticks, also where clocks change, and what becomes of them: pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from pgsluice.console.executor.ticks import IN_HAND, MOST_COUNTED, PAUSED, QUEUED, advanced, check_cron
from pgsluice.shared.pipelines.run_requests import (
    AskedBy,
    RequestState,
    RunRequest,
    RunRequests,
    RunWish,
    TickOutcome,
)
from pgsluice.shared.pipelines.run_schedule import OverlapPolicy, RunSchedule

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
QUARTERLY = RunSchedule(cron="*/15 * * * *")
EVERY_MINUTE = RunSchedule(every_s=60.0)


def done(known: RunRequests) -> RunRequests:
    """When all that were asked for have run."""
    return replace(known, requests=tuple(replace(each, state=RequestState.DONE) for each in known.requests))


def ids(known: RunRequests) -> list[str]:
    return [each.id for each in known.requests]


def local_ticks(cron: str, first: datetime, days: int = 3) -> list[str]:
    """By the clocks of Berlin, as somebody who looks every ten minutes finds them."""
    schedule, known, found = RunSchedule(cron=cron, time_zone="Europe/Berlin"), RunRequests(), []
    for minute in range(0, days * 24 * 60, 10):
        now = first.astimezone(UTC) + timedelta(minutes=minute)
        known = advanced(done(known), schedule, now)
        if known.open:
            found.append(datetime.fromisoformat(known.open[0].id).astimezone(BERLIN).isoformat())
    return found


def test_a_tick_of_cron_is_a_request_whose_id_is_its_time() -> None:
    known = advanced(RunRequests(), QUARTERLY, START)
    assert (known.requests, known.ticks.next) == ((), "2026-05-04T12:15:00+00:00")
    known = advanced(known, QUARTERLY, START + timedelta(minutes=15))
    [request] = known.requests
    assert (request.id, request.by, request.full) == ("2026-05-04T12:15:00+00:00", AskedBy.SCHEDULE, False)
    assert (known.ticks.last, known.ticks.next) == ("2026-05-04T12:15:00+00:00", "2026-05-04T12:30:00+00:00")


def test_whoever_looks_again_finds_nothing_new() -> None:
    known = advanced(RunRequests(), QUARTERLY, START)
    assert advanced(known, QUARTERLY, START + timedelta(minutes=5)) is known
    known = advanced(known, QUARTERLY, START + timedelta(minutes=15))
    assert advanced(known, QUARTERLY, START + timedelta(minutes=15)) is known


def test_an_interval_has_its_first_tick_at_once_and_keeps_its_beat() -> None:
    known = advanced(RunRequests(), EVERY_MINUTE, START)
    assert ids(known) == [START.isoformat()]
    known = advanced(done(known), EVERY_MINUTE, START + timedelta(seconds=61.5))
    assert ids(known)[1:] == [(START + timedelta(minutes=1)).isoformat()]
    assert known.ticks.next == (START + timedelta(minutes=2)).isoformat()


@pytest.mark.parametrize("schedule", [QUARTERLY, RunSchedule(every_s=900.0)])
def test_of_ticks_that_nobody_saw_the_last_one_runs_and_the_others_are_missed(schedule: RunSchedule) -> None:
    known = done(advanced(RunRequests(), schedule, START))
    before = len(known.requests)
    known = advanced(known, schedule, START + timedelta(hours=1))
    assert len(known.requests) == before + 1
    assert known.open[0].id == known.ticks.last
    [note] = known.ticks.notes
    assert (known.ticks.missed, note.outcome, note.count) == (3, TickOutcome.MISSED, 3)


def test_after_a_very_long_absence_the_newest_tick_runs() -> None:
    minutely = RunSchedule(cron="* * * * *")
    known = advanced(advanced(RunRequests(), minutely, START), minutely, START + timedelta(days=30))
    assert ids(known) == ["2026-06-03T12:00:00+00:00"]
    assert known.ticks.missed == MOST_COUNTED - 1


@pytest.mark.parametrize("schedule", [QUARTERLY, RunSchedule(every_s=900.0)])
def test_a_clock_that_was_ahead_holds_no_tick_up_once_it_is_right(schedule: RunSchedule) -> None:
    known = done(advanced(RunRequests(), schedule, START))
    known = done(advanced(known, schedule, START + timedelta(days=400)))
    known = done(advanced(known, schedule, START + timedelta(minutes=1)))
    assert datetime.fromisoformat(known.ticks.next) <= START + timedelta(minutes=16)
    known = advanced(known, schedule, START + timedelta(minutes=17))
    assert [each.by for each in known.open] == [AskedBy.SCHEDULE]
    known = RunRequests()
    known = advanced(known, schedule, START + timedelta(days=400))  # it was ahead from the beginning
    known = done(advanced(known, schedule, START))
    assert advanced(known, schedule, START + timedelta(minutes=17)).open


def test_no_tick_runs_twice_though_clocks_go_back() -> None:
    known = advanced(RunRequests(), QUARTERLY, START)
    known = done(advanced(known, QUARTERLY, START + timedelta(minutes=15)))
    known = done(advanced(known, QUARTERLY, START + timedelta(minutes=2)))
    assert advanced(known, QUARTERLY, START + timedelta(minutes=15)).open == ()


def test_a_tick_while_a_run_is_in_hand_is_skipped_and_recorded() -> None:
    known = advanced(RunRequests(), EVERY_MINUTE, START)
    for minute in range(1, 4):
        known = advanced(known, EVERY_MINUTE, START + timedelta(minutes=minute))
    assert len(known.requests) == 1
    assert known.ticks.skipped == 3
    assert [note.reason for note in known.ticks.notes] == [IN_HAND] * 3


def test_with_queue_one_tick_waits_and_the_next_ones_are_skipped() -> None:
    schedule = replace(EVERY_MINUTE, overlap=OverlapPolicy.QUEUE)
    known = advanced(RunRequests(), schedule, START)
    known = known.with_request(replace(known.requests[0], state=RequestState.TAKEN))
    for minute in range(1, 4):
        known = advanced(known, schedule, START + timedelta(minutes=minute))
    assert [each.state for each in known.requests] == [RequestState.TAKEN, RequestState.REQUESTED]
    assert [note.reason for note in known.ticks.notes] == [QUEUED] * 2


def test_ticks_of_a_paused_pipeline_are_skipped() -> None:
    known = advanced(RunRequests(wish=RunWish.PAUSE), EVERY_MINUTE, START)
    assert (known.requests, known.ticks.notes[0].reason) == ((), PAUSED)


def test_ticks_of_a_schedule_that_was_changed_begin_when_it_was_seen() -> None:
    known = advanced(RunRequests(), RunSchedule(cron="0 3 * * *"), START)
    later = START + timedelta(days=10)
    known = advanced(done(advanced(known, RunSchedule(cron="0 3 * * *"), later)), QUARTERLY, later + timedelta(hours=5))
    assert known.open == ()
    assert advanced(known, None, later).ticks.next == ""


def test_a_tick_in_the_hour_that_does_not_exist_comes_right_after_it() -> None:
    ticks = local_ticks("30 2 * * *", datetime(2026, 3, 28, 12, 0, tzinfo=BERLIN))
    assert ticks == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00", "2026-03-31T02:30:00+02:00"]


def test_a_tick_in_the_hour_that_comes_twice_comes_once() -> None:
    ticks = local_ticks("30 2 * * *", datetime(2026, 10, 24, 12, 0, tzinfo=BERLIN))
    assert ticks == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00", "2026-10-27T02:30:00+01:00"]


@pytest.mark.parametrize("day", [datetime(2026, 3, 29, tzinfo=BERLIN), datetime(2026, 10, 25, tzinfo=BERLIN)])
def test_ticks_within_an_hour_go_on_by_real_time_when_clocks_change(day: datetime) -> None:
    ticks = [datetime.fromisoformat(each).astimezone(UTC) for each in local_ticks("*/30 * * * *", day, days=1)]
    assert len(ticks) == 47
    assert {later - earlier for earlier, later in pairwise(ticks)} == {timedelta(minutes=30)}


@pytest.mark.parametrize("text", ["61 * * * *", "* * * *", "* * * * * *", "0 0 30 2 *", "0 0 LW * */6", "never", "@daily"])
def test_what_is_no_cron_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cron"):
        check_cron(text)


def test_of_many_requests_the_oldest_that_are_closed_are_forgotten() -> None:
    known = RunRequests()
    for number in range(80):
        state = RequestState.REQUESTED if number == 3 else RequestState.DONE
        known = known.with_request(RunRequest(str(number), full=False, by=AskedBy.PERSON, requested_at="", state=state))
    assert len(known.requests) == 50
    assert ids(known)[:2] == ["3", "31"]
