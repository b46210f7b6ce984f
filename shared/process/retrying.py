"""How long to wait before trying again, and when a failure that is tried again is worth a line in the log."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

HEALTHY_S = 60.0


class Pauses(NamedTuple):
    """Pauses double from ``first_s`` to ``longest_s``; each varies from ``least`` to 1.25 of that, so that those who failed
    together do not come back together."""

    first_s: float
    longest_s: float
    least: float = 0.75

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row, of which there is one at least."""
        return self.varied(min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 32)))

    def varied(self, pause_s: float) -> float:
        return pause_s * random.uniform(self.least, 1.25)  # noqa: S311  spreads retries, protects nothing


class RetryPolicy(NamedTuple):
    """The pauses of each kind of thing that is tried again; people give others by the option ``retry``."""

    source: Pauses = Pauses(0.25, 15.0)
    """Whatever begins with a new connection to the source, and locks there."""
    nats: Pauses = Pauses(0.1, 5.0)
    """Publishing changes: the source keeps its WAL meanwhile. In a worker, looking at the streams."""
    copied_rows: Pauses = Pauses(0.1, 2.0)
    """Publishing copied rows: a snapshot at the source is held open meanwhile."""
    copied_range: Pauses = Pauses(0.25, 10.0)
    """One page range, while others go on."""
    copied_table: Pauses = Pauses(15.0, 3600.0)
    """A table whose copy was given up for a passing cause; a person may ask for it earlier."""
    target: Pauses = Pauses(0.2, 30.0)
    """Opening a sink and applying a batch."""
    webhook: Pauses = Pauses(1.0, 60.0, least=1.0)
    """A receiver of requests, who may have said how long to wait at least."""


DEFAULT_POLICY = RetryPolicy()


class Backoff:
    """The pauses of one thing that fails again and again; after a healthy minute they begin again."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self._last_failure = 0.0

    def next_pause_s(self) -> float:
        """To be called at each failure."""
        now = time.monotonic()
        if now - self._last_failure > HEALTHY_S + self._pauses.longest_s:
            self._failures = 0
        self._failures += 1
        self._last_failure = now
        return self._pauses.after(self._failures)

    def note_success(self) -> None:
        """The next failure is a first one."""
        self._failures = 0


INTERVAL_S = 5.0


class RetryNews:
    """The first failure is news, and each that says something else; the same is told again after INTERVAL_S."""

    def __init__(self) -> None:
        self._told_at = 0.0
        self._fact = ""

    def is_due(self, error: Exception) -> bool:
        """To be asked at each failure."""
        now, fact = time.monotonic(), str(error)
        if fact == self._fact and now - self._told_at < INTERVAL_S:
            return False
        self._fact, self._told_at = fact, now
        return True
