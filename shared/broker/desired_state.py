"""What people want a unit to do, as the unit itself finds it in the state bucket.

It looks once a second instead of watching the key: a watch is a consumer, which has to be made again after each outage of the
broker and may then have missed what it was for; a look is one small question, and whoever pauses a unit does not notice a second.
While the broker does not answer, what was found last holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, assert_never

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.unit_records import NOTHING_DESIRED, Desired, DesiredRecord, desired_key
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.process.retrying import RetryNews

LOOK_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


class Stoppable(Protocol):
    """The ``Stopping`` of a replicator or of a worker."""

    def request(self) -> None:
        """Stop for good."""
        ...

    def pause(self, *, is_wanted: bool) -> None:
        """Rest from now on, or go on."""
        ...


class DesiredState:
    """Of one unit. Used on one event loop; the attributes may be read by any thread."""

    def __init__(self, unit: str, bucket: Callable[[], StateBucket | None], stopping: Stoppable, report: ProcessReport) -> None:
        """``bucket`` gives the bucket as the process reaches it now, None while it has no connection. ``stopping`` is told what
        is desired, and ``report`` tells others which revision that was."""
        self.record = NOTHING_DESIRED
        self.revision = 0
        """The record's, 0 for one that nobody wrote."""
        self._unit = unit
        self._key = desired_key(unit)
        self._bucket = bucket
        self._stopping = stopping
        self._report = report

    async def look(self) -> bool:
        """Whether there is another record than before. Raises TransientError when the broker does not answer, TerminalError when
        the record is none of a version that we know."""
        bucket = self._bucket()
        if bucket is None or (self.revision == 0 and not await bucket.exists()):  # a first start makes it
            return False
        entry = await bucket.read(self._key, DesiredRecord)
        record, revision = (NOTHING_DESIRED, 0) if entry is None else (entry.value, entry.revision)
        is_new = revision != self.revision
        self.record, self.revision = record, revision
        return is_new

    def obey(self) -> None:
        """Has the process do what was found last."""
        match self.record.state:
            case Desired.RUNNING:
                self._stopping.pause(is_wanted=False)
            case Desired.PAUSED:
                self._stopping.pause(is_wanted=True)
            case Desired.STOPPED:
                log.info("stopping, as is desired: 'pgsluice start' lets it be started again", unit=self._unit)
                self._stopping.request()
            case unreachable:
                assert_never(unreachable)
        self._report.acknowledged = self.revision

    async def follow(self) -> None:
        """Until it is cancelled: looks, and obeys after each change."""
        news = RetryNews()
        while True:
            try:
                if await self.look():
                    log.info("another state is desired", state=self.record.state, by=self.record.by, reason=self.record.reason)
                    self.obey()
            except PgsluiceError as error:
                if news.is_due(error):
                    log.warning("what this process is to do cannot be looked up, going on as before", reason=str(error))
            await asyncio.sleep(LOOK_INTERVAL_S)
