"""Pauses before retries, and the decision whether a repeated failure is worth a line in the log."""

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
        """Returns the pause after so many failures in a row, of which there is one at least."""
        return self.varied(min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 32)))

    def varied(self, pause_s: float) -> float:
        return pause_s * random.uniform(self.least, 1.25)  # noqa: S311  spreads retries, protects nothing


class RetryPolicy(NamedTuple):
    """The pauses of each kind of retry; the option ``retry`` changes them."""

    source: Pauses = Pauses(0.25, 15.0)
    """Whatever begins with a new connection to the source, and locks there."""
    nats: Pauses = Pauses(0.1, 5.0)
    """Publishing changes: the source keeps its WAL meanwhile. In a worker, looking at the streams."""
    copied_rows: Pauses = Pauses(0.1, 2.0)
    """Publishing copied rows: a snapshot at the source is held open meanwhile."""
    copied_range: Pauses = Pauses(0.25, 10.0)
    """One page range, while others continue."""
    copied_table: Pauses = Pauses(15.0, 3600.0)
    """A table whose copy failed for a passing cause; an operator may request it earlier."""
    target: Pauses = Pauses(0.2, 30.0)
    """Opening a sink and applying a batch."""
    webhook: Pauses = Pauses(1.0, 60.0, least=1.0)
    """A receiver of requests, which may have specified a minimum pause."""


DEFAULT_POLICY = RetryPolicy()


class Backoff:
    """The pauses of one thing that fails again and again; after a healthy minute they begin again."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self._last_failure = 0.0

    def next_pause_s(self) -> float:
        """Returns the pause after a failure; call it at each."""
        now = time.monotonic()
        if now - self._last_failure > HEALTHY_S + self._pauses.longest_s:
            self._failures = 0
        self._failures += 1
        self._last_failure = now
        return self._pauses.after(self._failures)

    def note_success(self) -> None:
        """Notes a success: the next failure is a first one."""
        self._failures = 0


INTERVAL_S = 5.0


class RetryNews:
    """Filters repeated failures: the first is due, and each with another text; an equal one is due again after
    INTERVAL_S."""

    def __init__(self) -> None:
        self._told_at = 0.0
        self._fact = ""

    def is_due(self, error: Exception) -> bool:
        """Returns whether to log the failure; call it at each."""
        now, fact = time.monotonic(), str(error)
        if fact == self._fact and now - self._told_at < INTERVAL_S:
            return False
        self._fact, self._told_at = fact, now
        return True
