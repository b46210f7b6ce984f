"""What counts as moving, and what as ready: a table over everything that a pulse can say."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import Cause
from pgsluice.shared.metrics.health import judge_health, judge_readiness
from pgsluice.shared.process.pulse import Activity
from tests.shared.metrics.vitals_of import MOVED_S, STILL_S, pulse_of


@pytest.mark.parametrize(
    ("activity", "since_s", "idle", "waits_for", "healthy"),
    [
        (Activity.WORKING, MOVED_S, False, None, True),
        (Activity.WORKING, MOVED_S, False, Cause.TARGET, True),  # it has just begun to wait
        (Activity.WORKING, 59.0, False, Cause.TARGET, True),
        (Activity.WORKING, STILL_S, False, Cause.TARGET, False),
        (Activity.WORKING, STILL_S, False, None, False),  # a batch that hangs without an error
        (Activity.WORKING, STILL_S, True, None, False),  # nothing to do, and nobody looks any more
        (Activity.PAUSED, STILL_S, False, None, True),
        (Activity.STARTING, STILL_S, True, None, True),  # a stand-by
        (Activity.STARTING, STILL_S, True, Cause.OTHER, True),  # a worker before its replicator
        (Activity.STARTING, STILL_S, True, Cause.TARGET, False),
        (Activity.ENDING, MOVED_S, True, None, True),
        (Activity.ENDING, STILL_S, True, None, False),
    ],
)
def test_health_is_progress(activity: Activity, since_s: float, idle: bool, waits_for: Cause | None, healthy: bool) -> None:
    verdict = judge_health(pulse_of(activity, since_s, idle=idle, waits_for=waits_for))
    assert verdict.is_good is healthy
    assert verdict.content["healthy"] is healthy


def test_who_is_not_healthy_says_what_it_waits_for() -> None:
    content = judge_health(pulse_of(Activity.WORKING, STILL_S, waits_for=Cause.LOCK)).content
    assert content["why"] == "nothing has moved for 61 s: the lock is away"
    assert content["waiting"]["cause"] == "lock"
    idle = judge_health(pulse_of(Activity.WORKING, STILL_S, idle=True)).content
    assert idle["why"] == "nothing has moved for 61 s; it was idle then, and no check has run since"


@pytest.mark.parametrize(
    ("activity", "nats", "ready", "why"),
    [
        (Activity.WORKING, True, True, ""),
        (Activity.WORKING, False, False, "without nats"),
        (Activity.PAUSED, True, True, "paused"),
        (Activity.PAUSED, False, False, "paused, without nats"),
        (Activity.STARTING, True, False, "starting"),
        (Activity.ENDING, True, False, "ending"),
    ],
)
def test_ready_is_who_has_begun_and_lacks_nothing(activity: Activity, nats: bool, ready: bool, why: str) -> None:
    verdict = judge_readiness(pulse_of(activity), {"nats": nats, "lease": True})
    assert (verdict.is_good, verdict.content["why"]) == (ready, why)
    assert (verdict.content["nats"], verdict.content["lease"]) == (nats, True)
