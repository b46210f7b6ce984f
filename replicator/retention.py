"""A worker that does not come back holds messages until the stream is full and the source keeps its log: that is said early.

Removes messages that nobody needs any more from the change stream.

A message is removed when every registered worker applied it and it is older than the retention time. What stays always begins
between transactions, and the newest settled message with everything behind it stays: the replicator resumes from there.
Without any registered worker nothing is removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import WORKER_PREFIX, StateBucket
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.lsn import LSN, parse_lsn
from pgsluice.shared.wire.message import MessageHeaders

SILENCE_S = 24 * 3600.0
WARNING_INTERVAL_S = 3600.0

log = telemetry.logger(__name__)


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
        """Names of the workers it warned of. Raises TransientError."""
        if self._warned_at is not None and time.monotonic() - self._warned_at < self._interval_s:
            return []
        absent = []
        for key in await self._bucket.keys():
            entry = await self._bucket.get(key) if key.startswith(WORKER_PREFIX) else None
            if entry is not None and await self._is_absent(entry.value):
                absent.append(key.removeprefix(WORKER_PREFIX))
                log.warning(
                    "a worker has not reported for long and holds back messages: start it, or run 'pgsluice forget'",
                    worker=absent[-1],
                    reported_at=entry.value["updated_at"],
                    applied=entry.value["sequence"],
                )
        if absent:
            self._warned_at = time.monotonic()
        return absent

    async def _is_absent(self, record: Mapping[str, Any]) -> bool:
        border = datetime.now(UTC) - self._silence
        reported_at = record.get("updated_at")
        if not reported_at or datetime.fromisoformat(reported_at) > border:
            return False
        state = await self._stream.state()
        if state is None or not state.messages:
            return False
        applied = record["sequence"] if record.get("stream_created") == state.created else 0
        waiting = await self._stream.message(max(applied + 1, state.first_sequence))
        return waiting is not None and waiting.stored_at <= border


INTERVAL_S = 60.0


_ANY_LSN = "FFFFFFFF/FFFFFFFF"  # of a report that does not name one


class _AppliedByAll(NamedTuple):
    """Every registered worker applied the messages up to ``sequence``, and the transactions up to ``commit_lsn``; 0 of both when
    there is no worker."""

    sequence: int
    commit_lsn: LSN


class Retention:
    """``retention_s`` is the least age of a message that is removed."""

    def __init__(self, stream: ChangeStream, bucket: StateBucket, retention_s: float) -> None:
        self._stream = stream
        self._bucket = bucket
        self._retention = timedelta(seconds=retention_s)
        self._absent = AbsentWorkers(stream, bucket)

    async def run(self) -> None:
        while True:
            try:
                await self.purge()
                await self._absent.check()
            except TransientError as error:
                log.warning("old messages are not removed now", reason=str(error))
            await asyncio.sleep(INTERVAL_S)

    async def purge(self) -> int:
        """Removes what may be removed; how many messages that were."""
        state = await self._stream.state()
        if state is None or state.messages == 0:
            return 0
        applied = await self._applied_by_all(state)
        newest_old = await self._newest_older_than(datetime.now(UTC) - self._retention, state.first_sequence, applied.sequence)
        if newest_old is None:
            return 0
        last = await self._headers(state.last_sequence)
        oldest_needed = await self._headers(newest_old)
        if oldest_needed.last.commit_lsn > applied.commit_lsn:
            return 0  # sequences of a stream that lost messages, and counts anew; the workers' next reports are right again
        border = min(oldest_needed.settled, last.settled - 1)
        if border < state.first_sequence:
            return 0
        await self._stream.purge_up_to(border)
        removed = border - state.first_sequence + 1
        log.info("old messages removed", stream=self._stream.name, messages=removed, last_removed=border)
        return removed

    async def _applied_by_all(self, state: StreamState) -> _AppliedByAll:
        applied = []
        for key in await self._bucket.keys():
            entry = await self._bucket.get(key) if key.startswith(WORKER_PREFIX) else None
            if entry is not None:
                is_of_this_stream = entry.value.get("stream_created") == state.created
                sequence = entry.value["sequence"] if is_of_this_stream else 0
                applied.append(_AppliedByAll(sequence, parse_lsn(entry.value.get("commit_lsn", _ANY_LSN))))
        nothing = _AppliedByAll(0, LSN(0))
        return _AppliedByAll(*map(min, zip(*applied, strict=True))) if applied else nothing

    async def _newest_older_than(self, border: datetime, first: int, last: int) -> int | None:
        """The newest of the sequences ``first`` to ``last`` stored before ``border``; a binary search, since times ascend."""
        found = None
        while first <= last:
            middle = (first + last) // 2
            message = await self._stream.message(middle)
            if message is not None and message.stored_at < border:
                found, first = middle, middle + 1
            else:
                last = middle - 1
        return found

    async def _headers(self, sequence: int) -> MessageHeaders:
        message = await self._stream.message(sequence)
        if message is None:
            raise TransientError(f"stream {self._stream.name} does not show its message {sequence}", "it is tried again")
        return MessageHeaders.decode(message.headers)
