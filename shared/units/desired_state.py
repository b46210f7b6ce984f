"""The desired state of a unit, as the unit itself finds it in the state bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.unit_records import Desired, desired_wish
from pgsluice.shared.broker.wishes import SeenWish, follow

log = telemetry.logger(__name__)


class Stoppable(Protocol):
    """A ``ReplicatorStopping`` or a ``WorkerStopping``."""

    def request(self) -> None:
        """Stops for good."""
        ...

    def pause(self, *, is_wanted: bool) -> None:
        """Pauses, or resumes."""
        ...


class DesiredState:
    """The desired state of one unit. Used on one event loop; ``wish`` may be read by any thread."""

    def __init__(self, unit: str, bucket: Callable[[], StateBucket | None], stopping: Stoppable, report: ProcessReport) -> None:
        """``bucket`` returns the bucket as the process reaches it now, None while it has no connection. ``stopping``
        gets the desired state, and ``report`` gets its revision, for other processes."""
        self.wish = SeenWish(desired_wish(unit))
        self._unit = unit
        self._bucket = bucket
        self._stopping = stopping
        self._report = report

    async def look(self) -> bool:
        """Returns whether there is another record than before. Raises TransientError when the broker does not answer,
        TerminalError when the record is of no known version."""
        bucket = self._bucket()
        if bucket is None or (self.wish.revision == 0 and not await bucket.exists()):  # a first start makes it
            return False
        return await self.wish.look(bucket)

    def apply(self) -> None:
        """Has the process do what was found last."""
        match self.wish.value.state:
            case Desired.RUNNING:
                self._stopping.pause(is_wanted=False)
            case Desired.PAUSED:
                self._stopping.pause(is_wanted=True)
            case Desired.STOPPED:
                log.info("stopping, as is desired: 'pgsluice start' lets it be started again", unit=self._unit)
                self._stopping.request()
            case unreachable:
                assert_never(unreachable)
        self._report.acknowledged = self.wish.revision

    async def follow(self) -> None:
        """Runs until it is cancelled: reads, and applies each change."""
        await follow(self._look_and_apply, "the desired state")

    async def _look_and_apply(self) -> None:
        if await self.look():
            desired = self.wish.value
            log.info("another state is desired", state=desired.state, by=desired.by, reason=desired.reason)
            self.apply()
