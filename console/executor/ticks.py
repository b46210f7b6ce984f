"""Computes the ticks of a schedule, and their outcomes: pure.

A tick is a time, and that is the id of the request that it makes: so it is one run, whichever executor finds it and how
often. ``cron`` text goes by the clocks of its time zone, as Debian's cron does. A tick whose time does not exist,
because clocks go forward, comes right after the gap; one whose time comes twice, because they go back, comes the first
time. Ticks that recur within an hour continue by real time.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from pgsluice.shared.pipelines.run_requests import (
    AskedBy,
    RequestState,
    RunRequest,
    RunRequests,
    TickNote,
    TickOutcome,
    Ticks,
)
from pgsluice.shared.pipelines.run_schedule import OverlapPolicy, RunSchedule

MOST_COUNTED = 1000
"""Ticks of one absence that are counted; with more there were so many at least."""

CLOCKS_DIFFER = timedelta(minutes=5)
"""Largest difference between two machines' clocks; a later tick was never due."""

PAUSED, IN_HAND, QUEUED = "the pipeline is paused", "a run was in progress", "a run was in progress, and another one waits"


def check_cron(text: str) -> None:
    """Raises ValueError with the end of a sentence that begins with the text."""
    if len(text.split()) != 5:
        raise ValueError("has not the five fields of cron (minute, hour, day, month, day of week)")
    try:
        first = next(CronSim(text, datetime(2026, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise ValueError(f"is no cron text ({str(error).lower()})") from None
    if first is None:
        raise ValueError("is cron text for a time that never comes")


def advanced(known: RunRequests, schedule: RunSchedule | None, now: datetime) -> RunRequests:
    """Returns the requests with all ticks up to ``now`` accounted for; the same object when nothing is new. Only the
    last of several becomes a request, the others were missed."""
    ticks = _without_future(known.ticks, now)
    if schedule is None:
        return known if not ticks.schedule else replace(known, ticks=replace(ticks, schedule="", next=""))
    if ticks.schedule != schedule.text:
        ticks = replace(ticks, schedule=schedule.text, since=now.isoformat())
    count, newest = _due(schedule, ticks, now)
    if newest is None:
        following = _next(schedule, ticks, now).isoformat()
        return known if ticks.next == following else replace(known, ticks=replace(ticks, next=following))
    at = newest.isoformat()
    ticks = replace(ticks, last=at)
    ticks = replace(ticks, next=_next(schedule, ticks, now).isoformat())
    if count > 1:
        ticks = ticks.with_note(TickNote(at, TickOutcome.MISSED, count - 1, "no process executed the pipeline"))
    return _with_tick(replace(known, ticks=ticks), schedule, at, now)


def _without_future(ticks: Ticks, now: datetime) -> Ticks:
    """Replaces times in the future, noted by a clock that was ahead and was set since, by now."""
    furthest = now + CLOCKS_DIFFER
    noted = [now.isoformat() if text and datetime.fromisoformat(text) > furthest else text for text in (ticks.since, ticks.last)]
    return ticks if noted == [ticks.since, ticks.last] else replace(ticks, since=noted[0], last=noted[1])


def _with_tick(known: RunRequests, schedule: RunSchedule, at: str, now: datetime) -> RunRequests:
    reason = _reason_to_skip(known, schedule)
    if known.find(at) is not None:  # by a clock that has been set back since
        return known
    if reason:
        return replace(known, ticks=known.ticks.with_note(TickNote(at, TickOutcome.SKIPPED, reason=reason)))
    return known.with_request(RunRequest(at, full=False, by=AskedBy.SCHEDULE, requested_at=now.isoformat()))


def _reason_to_skip(known: RunRequests, schedule: RunSchedule) -> str:
    if known.paused:
        return PAUSED
    if not known.open:
        return ""
    if schedule.overlap is OverlapPolicy.SKIP:
        return IN_HAND
    is_queued = any(each.by is AskedBy.SCHEDULE and each.state is RequestState.REQUESTED for each in known.open)
    return QUEUED if is_queued else ""


def _due(schedule: RunSchedule, ticks: Ticks, now: datetime) -> tuple[int, datetime | None]:
    """Returns how many ticks there were since the last one that was accounted for, and the newest of them."""
    if schedule.cron:
        return _due_by_cron(schedule, ticks, now)
    if not ticks.last:
        return 1, now
    last = datetime.fromisoformat(ticks.last)
    count = max(0, int((now - last).total_seconds() // schedule.every_s))
    return (count, last + timedelta(seconds=count * schedule.every_s)) if count else (0, None)


def _due_by_cron(schedule: RunSchedule, ticks: Ticks, now: datetime) -> tuple[int, datetime | None]:
    """A schedule that was changed begins when that was seen."""
    newest, count, tick = None, 0, _after(schedule, _begun(ticks))
    while tick <= now and count < MOST_COUNTED:
        newest, count, tick = tick, count + 1, _after(schedule, tick)
    if tick <= now:
        local = (now + timedelta(minutes=1)).astimezone(ZoneInfo(schedule.time_zone))
        newest = next(each for each in CronSim(schedule.cron, local, reverse=True) if each <= now).astimezone(UTC)
    return count, newest


def _begun(ticks: Ticks) -> datetime:
    since = datetime.fromisoformat(ticks.since)
    return max(since, datetime.fromisoformat(ticks.last)) if ticks.last else since


def _next(schedule: RunSchedule, ticks: Ticks, now: datetime) -> datetime:
    if schedule.cron:
        return _after(schedule, max(now, _begun(ticks)))
    return datetime.fromisoformat(ticks.last) + timedelta(seconds=schedule.every_s)


def _after(schedule: RunSchedule, time: datetime) -> datetime:
    return next(CronSim(schedule.cron, time.astimezone(ZoneInfo(schedule.time_zone)))).astimezone(UTC)
