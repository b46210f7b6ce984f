"""Judges whether a process makes progress, and whether it is ready: a pure function of its pulse.

Health is progress. A process that lives, answers and does nothing though there is work is not healthy; one without work
has checked a moment ago. A process that waits on purpose (paused, or a stand-by without the lease) is healthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

from pgsluice.shared.errors import Cause
from pgsluice.shared.process.pulse import Activity, Pulse, Wait

STILL_S = 60.0
"""Longer than any pause between two checks or two attempts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``content`` is the reason, for JSON."""

    is_good: bool
    content: dict[str, Any]


def judge_health(pulse: Pulse) -> Verdict:
    """Returns a bad verdict when nothing has moved for STILL_S although it should have."""
    still_s = _still_s(pulse)
    is_good = still_s <= STILL_S
    if is_good:
        why = {Activity.PAUSED: "paused", Activity.STARTING: "starting"}.get(pulse.activity, "")
    else:
        why = f"nothing has moved for {still_s:.0f} s{_reason(pulse)}"
    return Verdict(is_good, {"healthy": is_good, "why": why, **_facts(pulse)})


def judge_readiness(pulse: Pulse, conditions: Mapping[str, bool]) -> Verdict:
    """Good when the process has begun its work, or is paused, and every one of ``conditions`` is met."""
    missing = [name for name, is_met in conditions.items() if not is_met]
    is_begun = pulse.activity in (Activity.WORKING, Activity.PAUSED)
    is_good = is_begun and not missing
    reasons = [] if is_begun and pulse.activity is Activity.WORKING else [pulse.activity.value]
    reasons += [f"without {', '.join(missing)}{_reason(pulse)}"] if missing else []
    return Verdict(is_good, {"ready": is_good, "why": ", ".join(reasons), **conditions, **_facts(pulse)})


def _still_s(pulse: Pulse) -> float:
    """Returns the seconds without progress that was due."""
    match pulse.activity:
        case Activity.PAUSED:
            return 0.0
        case (
            Activity.STARTING
        ):  # it may wait for what other units do, which is OTHER, for as long as it takes; not for what fails
            wait = pulse.wait
            return 0.0 if wait is None or wait.cause is Cause.OTHER else waited_s(wait)
        case Activity.WORKING | Activity.ENDING:
            return pulse.age_s
        case unreachable:
            assert_never(unreachable)


def waited_s(wait: Wait) -> float:
    return max(0.0, (datetime.now(UTC) - wait.since).total_seconds())


def _reason(pulse: Pulse) -> str:
    wait = pulse.wait
    if wait is not None:
        return f": {wait.reason}"
    return "; it was idle then, and no check has run since" if pulse.idle else ""


def _facts(pulse: Pulse) -> dict[str, Any]:
    wait = pulse.wait
    facts: dict[str, Any] = {
        "activity": pulse.activity.value,
        "idle": pulse.idle,
        "since_progress_s": round(pulse.age_s, 3),
        "started_at": pulse.started_at.isoformat(timespec="seconds"),
    }
    if wait is not None:
        facts["waiting"] = {
            "cause": wait.cause.value,
            "since": wait.since.isoformat(timespec="seconds"),
            "next_attempt_at": wait.next_attempt_at.isoformat(timespec="seconds") if wait.next_attempt_at else None,
        }
    return facts
