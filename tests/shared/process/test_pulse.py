"""What a process knows of its own life."""

from __future__ import annotations

from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.process.pulse import Pulse


def away(cause: Cause) -> TransientError:
    return TransientError("it is away", "it is tried again", cause)


def test_a_wait_begins_with_the_first_failure_of_its_cause() -> None:
    pulse = Pulse()
    pulse.waits(away(Cause.TARGET), 1.0)
    first = pulse.wait
    pulse.waits(away(Cause.TARGET), 2.0)
    second = pulse.wait
    assert first is not None
    assert second is not None
    assert second.since == first.since
    assert second.next_attempt_at is not None
    assert first.next_attempt_at is not None
    assert second.next_attempt_at > first.next_attempt_at
    pulse.waits(away(Cause.NATS))
    assert pulse.wait is not None
    assert (pulse.wait.cause, pulse.wait.next_attempt_at) == (Cause.NATS, None)


def test_progress_ends_the_wait() -> None:
    pulse = Pulse()
    pulse.waits(away(Cause.LOCK), 1.0)
    pulse.progressed(idle=True)
    assert pulse.wait is None
    assert pulse.idle
    assert pulse.age_s < 60
