"""How much each principal may ask for: a bucket of tokens, of which a request takes one, and reading what it sends more.

It bounds work: whoever asks for more than the bucket is filled with is told when to come again, and nobody else notices. What is
refused so is no entry of the audit: it would fill that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pgsluice.console.server.access.principal import Principal
from pgsluice.console.server.problem import Kind, Problem

PER_SECOND = 100.0
"""The page asks for a few each second, and a script that looks at many groups for some dozens."""
MOST = 1000.0
"""That are saved up."""
PER_BODY_KIB = 0.5
"""That a body takes before it is read."""
PER_PROCESSOR_S = 500.0
"""That a second of reading takes: nobody has more than a fifth of a processor for long."""


class RequestRates:
    """``now`` is a clock that never goes back, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}
        """What is left, below zero where more was taken than there was, and when that was so; by the principal's token."""

    def take(self, who: Principal) -> None:
        """For a request. Raises Problem (429) where nothing is left."""
        left = self._left(who)
        if left < 1:
            wait_s = math.ceil((1 - left) / PER_SECOND)
            raise Problem(
                Kind.TOO_MANY,
                f"'{who.name}' asks for more than one may",
                f"ask again after {wait_s} s, and less often",
                retry_after_s=wait_s,
            )
        self._buckets[who.token] = left - 1, self._now()

    def charge(self, who: Principal, *, body_bytes: int = 0, processor_s: float = 0.0) -> None:
        """For what was sent, however much, and the time to read it: whoever sent it waits for longer before the next request."""
        taken = PER_BODY_KIB * body_bytes / 1024 + PER_PROCESSOR_S * processor_s
        self._buckets[who.token] = self._left(who) - taken, self._now()

    def _left(self, who: Principal) -> float:
        left, at = self._buckets.get(who.token, (MOST, self._now()))
        return min(MOST, left + PER_SECOND * (self._now() - at))
