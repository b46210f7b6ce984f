"""Requests to end, for good or for a pause: what runs at the source ends the same way, and after a pause begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.process.pulse import Activity, Pulse

REST_INTERVAL_S = 1.0

log = telemetry.logger(__name__)

T = TypeVar("T")


class ReplicatorStopping:
    """Used on one event loop."""

    def __init__(self, pulse: Pulse) -> None:
        """``pulse`` is set to resting while all of the ``parts`` rest."""
        self._pulse = pulse
        self.parts = 1
        self._resting = 0
        self.for_good = asyncio.Event()
        self.end = asyncio.Event()
        """Set by a stop and by a pause; there is another one after each pause. A task that waits for this one still
        ends, however short the pause was."""
        self._is_pause_wanted = False

    def request(self) -> None:
        """Stops for good."""
        self.for_good.set()
        self.end.set()

    def pause(self, *, is_wanted: bool) -> None:
        """Pauses, or resumes."""
        if is_wanted:
            self.end.set()
        elif self._is_pause_wanted and not self.for_good.is_set():
            self.end = asyncio.Event()
        self._is_pause_wanted = is_wanted

    async def rest(self) -> None:
        """Rests a part: call it in each. Returns when no pause is wanted, at once when none is, or after a stop."""
        if not self._is_pause_wanted or self.for_good.is_set():
            return
        self._resting += 1
        before = self._pulse.activity
        if self._resting == self.parts:
            log.info("paused, until 'pgsluice resume'")
        while self._is_pause_wanted and not self.for_good.is_set():
            if self._resting == self.parts:
                self._pulse.activity = Activity.PAUSED
                self._pulse.progressed(idle=True)
            await self.unless_ended(asyncio.sleep(REST_INTERVAL_S), self.for_good)
        self._resting -= 1
        if before is not Activity.PAUSED:
            self._pulse.activity = before

    async def unless_ended(self, call: Coroutine[Any, Any, T], end: asyncio.Event) -> T | None:
        """Returns the call's result; None, with the call cancelled, when ``end`` came first."""
        task, ended = asyncio.ensure_future(call), asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            await cancel({task, ended})
