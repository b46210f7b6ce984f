"""Users' requests for the current run, polled once a second: a run that must end does so between two messages."""

from __future__ import annotations

import asyncio
from typing import assert_never

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.errors import TransientError
from pgsluice.shared.pipelines.run_records import RunState
from pgsluice.shared.pipelines.run_requests import RUN_REQUESTS, RunWish

LOOK_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


class WishWatch:
    """``ends_as`` is None as long as the run should continue."""

    def __init__(self, bucket: StateBucket, run: int) -> None:
        self._bucket = bucket
        self._run = run
        self.ends_as: RunState | None = None

    async def run(self) -> None:
        """Returns when the run must end; checks at once."""
        while True:
            if await self.is_to_end():
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def is_to_end(self) -> bool:
        """Checks. A run that calls this before its first message publishes nothing if it was ended before it began."""
        self.ends_as = _end_of(await self._wish())
        return self.ends_as is not None

    async def look_last(self) -> None:
        """Checks for a cancel before the run is finished: one that has read everything has nothing to pause."""
        if self.ends_as is None and await self._wish() is RunWish.CANCEL:
            self.ends_as = RunState.CANCELLED

    async def _wish(self) -> RunWish:
        """Returns no wish while the broker does not answer."""
        try:
            return (await RUN_REQUESTS.load(self._bucket)).wishes(self._run)
        except TransientError as error:
            log.debug("requests about the run cannot be read now", reason=str(error))
            return RunWish.RUN


def _end_of(wish: RunWish) -> RunState | None:
    match wish:
        case RunWish.RUN:
            return None
        case RunWish.PAUSE:
            return RunState.PAUSED
        case RunWish.CANCEL:
            return RunState.CANCELLED
        case unreachable:
            assert_never(unreachable)
