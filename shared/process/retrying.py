"""How long to wait before trying again.

When a failure that is tried again is worth a line in the log.
"""

from __future__ import annotations

import random
import time

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 15.0
HEALTHY_S = 60.0


class Backoff:
    """Pauses double up to a limit and vary by a quarter; after a healthy minute they begin anew."""

    def __init__(self) -> None:
        self._failures = 0
        self._last_failure = 0.0

    def next_pause_s(self) -> float:
        """To be called at each failure."""
        now = time.monotonic()
        if now - self._last_failure > HEALTHY_S + MAX_PAUSE_S:
            self._failures = 0
        self._failures += 1
        self._last_failure = now
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16))
        return pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - jitter, not cryptography


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
