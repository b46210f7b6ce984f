"""A process's report in the state bucket, under ``process.<unit>``: its Pulse, for other processes.

One task of the process reads the pulse once a second. It writes when something changed that operators act upon, and
otherwise every ALIVE_INTERVAL_S, so that a record which grows old means that its process was killed, is frozen, or has
no broker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.record import MalformedError, decode
from pgsluice.shared.broker.unit_records import ALIVE_INTERVAL_S, ProcessRecord, WaitRecord, process_key
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process.defect import unexpected
from pgsluice.shared.process.program_version import program_version
from pgsluice.shared.process.pulse import Activity, Pulse, Wait

LOOK_INTERVAL_S = 1.0
END_DEADLINE_S = 3.0

log = telemetry.logger(__name__)


class ProcessReport:
    """Used on one event loop. ``bucket`` gives the bucket as the process reaches it now, None while it has no connection."""

    def __init__(self, unit: str, pulse: Pulse, bucket: Callable[[], StateBucket | None]) -> None:
        self.acknowledged = 0
        """The revision of ``desired.<unit>`` that the process obeys."""
        self.is_claimed = False
        """True if no other process can be this unit now, as long as this one holds its lease or slot. Before that, a
        record of another live process is not overwritten."""
        self._key = process_key(unit)
        self._pulse = pulse
        self._bucket = bucket
        self._host = socket.gethostname()
        self._version = program_version()
        self._told: ProcessRecord | None = None
        self._told_at = 0.0

    async def run(self) -> None:
        """Runs until it is cancelled. Raises TerminalError when the bucket is gone or refuses the record."""
        while True:
            try:
                await self._tell_news()
            except TransientError as error:
                log.debug("the process's record cannot be written now", reason=str(error))  # reported elsewhere
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def tell_end(self, error: BaseException | None, *, is_finished: bool = False) -> None:
        """Writes the last record, with what ended the process; None: it was stopped, or ``is_finished``. Nothing is
        written when the broker does not answer, or when another process is this unit by now."""
        self._pulse.activity = Activity.ENDING
        record = replace(self._record(), wait=None) if error is None else self._record()
        try:
            async with asyncio.timeout(END_DEADLINE_S):
                bucket = await self._reached()
                if bucket is not None and not await self._is_anothers(bucket):
                    await bucket.put(self._key, replace(_ended(record, error), is_finished=is_finished and error is None))
        except (PgsluiceError, TimeoutError) as failure:
            log.debug("the end of the process could not be reported", reason=type(failure).__name__)

    async def _tell_news(self) -> None:
        record, now = self._record(), time.monotonic()
        if self._told is not None and _news(record) == _news(self._told) and now - self._told_at < ALIVE_INTERVAL_S:
            return
        bucket = await self._reached()
        if bucket is None or (not self.is_claimed and await self._is_anothers(bucket)):
            return
        await bucket.put(self._key, record)
        self._told, self._told_at = record, now

    async def _reached(self) -> StateBucket | None:
        """A first start makes the bucket, so it may not be there yet; once it was, its absence is an error."""
        bucket = self._bucket()
        if bucket is None or (self._told is None and not await bucket.exists()):
            return None
        return bucket

    async def _is_anothers(self, bucket: StateBucket) -> bool:
        """Returns whether the record belongs to another process that seems to live."""
        entry = await bucket.get(self._key)
        if entry is None:
            return False
        try:
            record = decode(ProcessRecord, entry.value)
        except MalformedError:
            return False
        if record.exit_code is not None or self._is_own(record) or self._is_gone_from_here(record):
            return False
        age_s = await bucket.age_s(self._key)
        return age_s is not None and age_s < 3 * ALIVE_INTERVAL_S

    def _is_own(self, record: ProcessRecord) -> bool:
        return (record.host, record.pid, record.started_at) == (self._host, os.getpid(), self._pulse.started_at.isoformat())

    def _is_gone_from_here(self, record: ProcessRecord) -> bool:
        """Returns whether it ran on this host, and its process ID is now unused, or this process's. If two containers
        have one host name that may be wrong: then their records replace each other, without further effect."""
        return record.host == self._host and (record.pid == os.getpid() or not os.path.exists(f"/proc/{record.pid}"))

    def _record(self) -> ProcessRecord:
        pulse, now = self._pulse, datetime.now(UTC)
        return ProcessRecord(
            host=self._host,
            pid=os.getpid(),
            started_at=pulse.started_at.isoformat(),
            updated_at=now.isoformat(),
            activity=pulse.activity,
            progressed_at=(now - timedelta(seconds=pulse.age_s)).isoformat(),
            idle=pulse.idle,
            wait=_wait_record(pulse.wait),
            acknowledged=self.acknowledged,
            version=self._version,
        )


def _news(record: ProcessRecord) -> ProcessRecord:
    """Returns the record without the fields that always change."""
    return replace(record, updated_at="", progressed_at="", idle=True)


def _wait_record(wait: Wait | None) -> WaitRecord | None:
    if wait is None:
        return None
    attempt = wait.next_attempt_at
    return WaitRecord(wait.cause, wait.reason, wait.since.isoformat(), "" if attempt is None else attempt.isoformat())


def _ended(record: ProcessRecord, error: BaseException | None) -> ProcessRecord:
    if error is None:
        return replace(record, exit_code=0)
    if isinstance(error, PgsluiceError):
        known = error
    elif isinstance(error, Exception):
        known = unexpected(error, "the process")
    else:
        known = PgsluiceError(f"the process was interrupted ({type(error).__name__})")
    return replace(record, exit_code=known.exit_code, fact=known.fact, remedy=known.remedy)
