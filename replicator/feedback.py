"""Standby status updates: a task of its own, so that a slow broker never makes the server think that we are gone."""

from __future__ import annotations

import asyncio
import time

from replicator.progress import Progress
from replicator.receiver import Receiver
from replicator.walsender import WalSender
from shared.errors import TransientError

MAX_INTERVAL_S = 10.0
TICK_S = 0.5  # how late a newly confirmed LSN may reach the server
MIN_SILENCE_S = 30.0


def status_interval_s(wal_sender_timeout_ms: int) -> float:
    """A third of the server's patience; 0 means that it has no limit."""
    return min(MAX_INTERVAL_S, wal_sender_timeout_ms / 3000) if wal_sender_timeout_ms else MAX_INTERVAL_S


class Feedback:
    """Sends a status at least every ``interval_s`` and soon after the confirmed LSN moved.

    Each regular status asks for a keepalive, so a healthy server is never silent for long; one that is, is given up.
    """

    def __init__(self, walsender: WalSender, progress: Progress, receiver: Receiver, interval_s: float) -> None:
        self._walsender = walsender
        self._progress = progress
        self._receiver = receiver
        self._interval_s = interval_s
        self._silence_limit_s = max(MIN_SILENCE_S, 3 * interval_s)
        self._sent_at = 0.0
        self._sent_lsn = 0

    async def run(self) -> None:
        """Ends only by raising: TransientError when the connection is broken or the server is silent."""
        while True:
            self._tick()
            await asyncio.sleep(min(TICK_S, self._interval_s))

    def send(self) -> None:
        """Tells the server what is confirmed now."""
        self._sent_at, self._sent_lsn = time.monotonic(), self._progress.confirmed
        self._walsender.send_status(self._receiver.received, self._sent_lsn, reply=True)

    def _tick(self) -> None:
        is_due = time.monotonic() - self._sent_at >= self._interval_s
        if is_due or self._progress.confirmed > self._sent_lsn:
            self.send()
        if self._receiver.silence_s() > self._silence_limit_s:
            raise TransientError(
                f"the source has been silent for {self._silence_limit_s:g} s", "the connection is given up and made again"
            )
