"""When a failure that is tried again is worth a line in the log."""

from __future__ import annotations

import time

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
