"""What the lanes wait for while they try again.

The process's pulse is told, so that whoever looks sees a receiver that is waited for and not a worker that stands still.
"""

from __future__ import annotations

import threading
import time

from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.pulse import Pulse


class LaneWaits:
    """Any thread may call. ``pulse`` is the process's, or one that nobody looks at."""

    def __init__(self) -> None:
        self.pulse = Pulse()
        self._lock = threading.Lock()
        self._waits: dict[int, tuple[float, TransientError]] = {}
        """By lane, each with when it tries again, by the monotonic clock."""

    def begin(self, lane: int, error: TransientError, pause_s: float) -> None:
        with self._lock:
            self._waits[lane] = (time.monotonic() + pause_s, error)
        self.tell()

    def end(self, lane: int) -> None:
        """A request of ``lane`` was answered: the batch has moved, and goes on to wait for the other lanes."""
        with self._lock:
            self._waits.pop(lane, None)
            self.pulse.progressed()
        self.tell()

    def tell(self) -> None:
        """To be called again when the pulse was told of progress meanwhile. Of several waits the longest counts: the batch is
        done when all are over."""
        with self._lock:
            if self._waits:
                until, error = max(self._waits.values(), key=lambda wait: wait[0])
                self.pulse.waits(error, max(0.0, until - time.monotonic()))

    def clear(self) -> None:
        """Nothing is tried again."""
        with self._lock:
            self._waits.clear()
