"""How long to wait before trying again."""

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
