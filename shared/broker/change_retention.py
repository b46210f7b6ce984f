"""Removes old messages from a group's change stream.

A message is removed when every registered worker applied it and it is older than the retention time. The rest always
begins between transactions, and the newest settled message with everything after it stays: the publisher resumes from
there.

Without any registered worker nothing is removed. One that does not come back holds messages until the stream is full: a
warning comes early. The publisher calls this periodically: a group's replicator, or the workers that index what lies in
Kafka. Any number of processes may do so at once, because each removes only what all workers have reported as no longer
needed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream, Stream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.position import LSN, parse_lsn

INTERVAL_S = 60.0
SILENCE_S = 24 * 3600.0
WARNING_INTERVAL_S = 3600.0

log = telemetry.logger(__name__)


class _AppliedByAll(NamedTuple):
    """Every registered worker applied the messages up to ``sequence``, and the transactions up to ``commit_lsn``; 0 of both when
    there is no worker."""

    sequence: int
    commit_lsn: LSN


class ChangeRetention:
    """Removes applied messages from the change stream, and warns of workers that hold some back. ``retention_s`` is the least age
    of a message that is removed."""

    def __init__(self, stream: ChangeStream, bucket: StateBucket, retention_s: float) -> None:
        self._stream = stream
        self._bucket = bucket
        self._retention = timedelta(seconds=retention_s)
        self._absent = AbsentWorkers(stream, bucket)

    async def purge_and_warn(self) -> None:
        """Does what is due every INTERVAL_S. Raises TransientError."""
        await self.purge()
        await self._absent.check()

    async def purge(self) -> int:
        """Removes what may be removed; how many messages that were."""
        state = await self._stream.state()
        if state is None or state.messages == 0:
            return 0
        applied = await self._applied_by_all(state)
        old = datetime.now(UTC) - self._retention
        newest_old = await newest_before(self._stream, old, state.first_sequence, applied.sequence)
        if newest_old is None:
            return 0
        last = await self._headers(state.last_sequence)
        oldest_needed = await self._headers(newest_old)
        if oldest_needed.last.commit_lsn > applied.commit_lsn:
            return 0  # sequences of a stream that lost messages; the workers' next reports are right again
        border = min(oldest_needed.settled, last.settled - 1)
        if border < state.first_sequence:
            return 0
        await self._stream.purge_up_to(border)
        removed = border - state.first_sequence + 1
        log.info("old messages removed", stream=self._stream.name, messages=removed, last_removed=border)
        return removed

    async def _applied_by_all(self, state: StreamState) -> _AppliedByAll:
        reports = (await read_reports(self._bucket)).values()
        if not reports:
            return _AppliedByAll(0, LSN(0))
        return _AppliedByAll(
            min(report.released_in(state.created) for report in reports), min(parse_lsn(report.applied_lsn) for report in reports)
        )

    async def _headers(self, sequence: int) -> MessageHeaders:
        message = await self._stream.message(sequence)
        if message is None:
            raise TransientError(
                f"stream {self._stream.name} does not show its message {sequence}", "it is tried again", Cause.NATS
            )
        return MessageHeaders.decode(message.headers)


async def newest_before(stream: Stream, time: datetime, first: int, last: int) -> int | None:
    """Returns the newest of the sequences ``first`` to ``last`` stored before ``time``; a binary search, since times
    ascend."""
    found = None
    while first <= last:
        middle = (first + last) // 2
        message = await stream.message(middle)
        if message is not None and message.stored_at < time:
            found, first = middle, middle + 1
        else:
            last = middle - 1
    return found


class AbsentWorkers:
    """Warns once every ``interval_s`` of workers that have not reported for ``silence_s`` while a message as old waits for them.
    (One that has nothing to apply reports nothing, however long.)"""

    def __init__(
        self,
        stream: ChangeStream,
        bucket: StateBucket,
        silence_s: float = SILENCE_S,
        interval_s: float = WARNING_INTERVAL_S,
    ) -> None:
        self._stream = stream
        self._bucket = bucket
        self._silence = timedelta(seconds=silence_s)
        self._interval_s = interval_s
        self._warned_at: float | None = None

    async def check(self) -> list[str]:
        """Warns; returns the names of the workers it warned of. Raises TransientError."""
        if self._warned_at is not None and time.monotonic() - self._warned_at < self._interval_s:
            return []
        absent = []
        for worker, report in (await read_reports(self._bucket)).items():
            if await self._is_absent(report):
                absent.append(worker)
                log.warning(
                    "a worker has not reported for long and holds back messages: start it, or run 'pgsluice forget'",
                    worker=worker,
                    reported_at=report.updated_at,
                    applied=report.sequence,
                )
        if absent:
            self._warned_at = time.monotonic()
        return absent

    async def _is_absent(self, report: WorkerReport) -> bool:
        border = datetime.now(UTC) - self._silence
        if not report.updated_at or datetime.fromisoformat(report.updated_at) > border:
            return False
        state = await self._stream.state()
        if state is None or not state.messages:
            return False
        waiting = await self._stream.message(max(report.applied_in(state.created) + 1, state.first_sequence))
        return waiting is not None and waiting.stored_at <= border
