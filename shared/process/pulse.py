"""A process's state: what it is doing, when it last moved, and what it waits for.

The working code updates it, from any thread and without a lock worth measuring; the endpoints for metrics and health
read it, and so does the record that others read in the state bucket.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from pgsluice.shared.errors import Cause, TransientError


class Activity(StrEnum):
    """A process's current activity. STARTING ends when it may do its work: source or sink and NATS answered, and the
    lease is held."""

    STARTING = "starting"
    WORKING = "working"
    PAUSED = "paused"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Wait:
    """The current wait, and its start; ``next_attempt_at`` is None while nothing is planned, as in a wait for a lock.
    ``reason`` is a sentence for users, without row values and secrets."""

    cause: Cause
    reason: str
    since: datetime
    next_attempt_at: datetime | None = None


class Pulse:
    """One for each process. Every attribute is written whole, so that readers of other threads need no lock."""

    def __init__(self) -> None:
        self.activity = Activity.STARTING
        self.started_at = datetime.now(UTC)
        self.progressed_at = time.monotonic()
        """Time of the last progress, by the monotonic clock. A process without work makes progress by checking."""
        self.wait: Wait | None = None
        self.idle = True
        """True if there was nothing to do at the last check. While there is something to do, time without progress is a
        defect."""

    def progressed(self, *, idle: bool = False) -> None:
        """Notes that the work has moved, or was looked for and not found (``idle``); nothing is waited for any more."""
        self.progressed_at = time.monotonic()
        self.idle = idle
        self.wait = None

    def moved(self) -> None:
        """Like ``progressed``, for a step of an attempt that may still fail: the wait before it is not over yet."""
        self.progressed_at = time.monotonic()
        self.idle = False

    def waits(self, error: TransientError, pause_s: float | None = None) -> None:
        """Notes that the work failed for a passing cause and is tried again after ``pause_s``. The wait began with the
        first failure."""
        now = time.time()
        since = self.wait.since if self.wait is not None and self.wait.cause is error.cause else datetime.fromtimestamp(now, UTC)
        attempt = None if pause_s is None else datetime.fromtimestamp(now + pause_s, UTC)
        self.wait = Wait(error.cause, str(error), since, attempt)

    @property
    def age_s(self) -> float:
        """Seconds since the work moved last."""
        return time.monotonic() - self.progressed_at
