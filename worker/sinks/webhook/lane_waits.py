"""The waits of lanes while they retry.

They are reported to the process's pulse, so that it shows a receiver that is waited for and not a stuck worker.
"""

from __future__ import annotations

import threading
import time

from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.pulse import Pulse


class LaneWaits:
    """Any thread may call. ``pulse`` is the process's, or an unused one."""

    def __init__(self) -> None:
        self.pulse = Pulse()
        self._lock = threading.Lock()
        self._waits: dict[int, tuple[float, TransientError]] = {}
        """Waits by lane, each with the time of the next attempt, by the monotonic clock."""

    def begin(self, lane: int, error: TransientError, pause_s: float) -> None:
        with self._lock:
            self._waits[lane] = (time.monotonic() + pause_s, error)
        self.tell()

    def end(self, lane: int) -> None:
        """Notes an answered request of ``lane``: the batch has moved, and may still wait for the other lanes."""
        with self._lock:
            self._waits.pop(lane, None)
            self.pulse.progressed()
        self.tell()

    def tell(self) -> None:
        """Reports the longest wait to the pulse; call it again when the pulse was set to progress meanwhile. The batch
        is done when all waits are over."""
        with self._lock:
            if self._waits:
                until, error = max(self._waits.values(), key=lambda wait: wait[0])
                self.pulse.waits(error, max(0.0, until - time.monotonic()))

    def clear(self) -> None:
        """Clears the waits: nothing is tried again."""
        with self._lock:
            self._waits.clear()
