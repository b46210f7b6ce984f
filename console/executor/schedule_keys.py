"""The keys of a pipeline's schedule: ``schedule`` and ``time-zone``, or ``every``, and ``overlap-policy``."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pgsluice.console.executor.ticks import check_cron
from pgsluice.rules.document import YamlMapping
from pgsluice.shared.config.kinds import parse_duration
from pgsluice.shared.pipelines.run_schedule import OverlapPolicy, RunSchedule

SCHEDULE_KEYS = ("schedule", "time-zone", "every", "overlap-policy")
SHORTEST_S = 1.0


def read_schedule(given: YamlMapping) -> RunSchedule | None:
    """Returns None where neither is given, or for what is noted as a problem."""
    cron, every = given.text("schedule"), given.text("every")
    if cron is None and every is None:
        for key in ("time-zone", "overlap-policy"):
            if key in given:
                given.problem(f"{key} has no meaning without 'schedule' or 'every'", key)
        return None
    if cron is not None and every is not None:
        given.problem("schedule and every are both given (give one of them)", "every")
        return None
    policy = given.choice("overlap-policy", [str(each) for each in OverlapPolicy]) if "overlap-policy" in given else None
    overlap = OverlapPolicy(policy or OverlapPolicy.SKIP)
    if cron is None:
        if "time-zone" in given:
            given.problem("time-zone has no meaning with 'every'", "time-zone")
        return RunSchedule(every_s=_every(given, every or ""), overlap=overlap)
    try:
        check_cron(cron)
    except ValueError as error:
        given.problem(f"schedule '{cron}' {error}; write it like '*/15 * * * *'", "schedule")
        return None
    return RunSchedule(cron=" ".join(cron.split()), time_zone=_time_zone(given), overlap=overlap)


def _every(given: YamlMapping, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        given.problem(f"every '{text}' {error}; write it like 15m", "every")
        return SHORTEST_S
    if seconds < SHORTEST_S:
        given.problem(f"every '{text}' is shorter than a second", "every")
        return SHORTEST_S
    return seconds


def _time_zone(given: YamlMapping) -> str:
    text = given.text("time-zone") or "UTC"
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        given.problem(f"time-zone '{text}' is not known (write it like Europe/Berlin)", "time-zone")
        return "UTC"
    return text
