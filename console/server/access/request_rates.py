"""Rate limits for each principal: a token bucket. A request takes one token, and reading its body takes more.

The bucket bounds work: a principal that exceeds the bucket gets an answer with the time to try again, and the other
principals are served as before. The audit has no entries for requests that are refused here: they would fill it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pgsluice.console.server.access.principal import Principal
from pgsluice.console.server.problem import Problem, ProblemKind

PER_SECOND = 100.0
"""The page sends a few requests each second, and a script that reads many groups some dozens."""
MOST = 1000.0
"""Tokens that the bucket holds at most."""
PER_BODY_KIB = 0.5
"""Tokens that each KiB of a body takes before the server reads the body."""
PER_PROCESSOR_S = 500.0
"""Tokens that a second of reading takes: no principal has more than a fifth of a processor for long."""


class RequestRates:
    """``now`` is a clock that never goes back, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}
        """The tokens that were left, and the time when they were counted, by the principal's token. Below zero when a
        principal took more than the bucket held."""

    def take(self, who: Principal) -> None:
        """Takes one token for a request. Raises Problem (429) when none is left."""
        left = self._left(who)
        if left < 1:
            wait_s = math.ceil((1 - left) / PER_SECOND)
            raise Problem(
                ProblemKind.TOO_MANY,
                f"'{who.name}' sends more requests than a token may",
                f"send the next request after {wait_s} s, and fewer of them",
                retry_after_s=wait_s,
            )
        self._buckets[who.token] = left - 1, self._now()

    def charge(self, who: Principal, *, body_bytes: int = 0, processor_s: float = 0.0) -> None:
        """Takes tokens for a body of any size and for the time to read it: its sender waits longer before the next request."""
        taken = PER_BODY_KIB * body_bytes / 1024 + PER_PROCESSOR_S * processor_s
        self._buckets[who.token] = self._left(who) - taken, self._now()

    def _left(self, who: Principal) -> float:
        left, at = self._buckets.get(who.token, (MOST, self._now()))
        return min(MOST, left + PER_SECOND * (self._now() - at))
