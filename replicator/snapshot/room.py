"""Making room in the snapshot stream while a copy runs, and emptying it after.

A copy may be larger than its stream: what every registered worker has applied is removed once the stream is half full. Two things
must stay. A range that is not finished needs its newest message, for a task that takes it up looks there how far it has come. And
a body in chunks needs all of them until its last one is applied. ``Borders`` keeps both: it notes where the stream has come
whenever a range is finished, together with the ranges that are open then. Once all of these are finished too, everything before
that place belongs to finished ranges.

After the copy everything is removed once every worker has applied it and it is older than the retention time. Without any
registered worker nothing is removed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import WORKER_PREFIX, StateBucket
from pgsluice.shared.broker.ledger import CopyState, Ledger
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.errors import TransientError

CHECK_INTERVAL_S = 1.0
RETENTION_INTERVAL_S = 60.0

log = telemetry.logger(__name__)

Range = tuple[int, int]
"""A page range, by table oid and number."""


@dataclass(slots=True)
class _Border:
    """Messages up to ``sequence`` belong to finished ranges once ``open_ranges`` is empty."""

    sequence: int
    open_ranges: frozenset[Range]


class Borders:
    """Which messages may go, by what was noted so far: pure."""

    def __init__(self) -> None:
        self._unsettled: list[_Border] = []
        self._settled: deque[tuple[int, int]] = (
            deque()
        )  # the sequence up to which messages may go, and what is to be applied before
        self._newest = 0

    def note(self, last_sequence: int, open_ranges: frozenset[Range]) -> None:
        """A range is finished, its last message stored at ``last_sequence``; these ranges were begun and are not finished."""
        if last_sequence > self._newest:
            self._newest = last_sequence
            self._unsettled.append(_Border(last_sequence, open_ranges))
        for border in self._unsettled:
            border.open_ranges &= open_ranges
        while self._unsettled and not self._unsettled[0].open_ranges:
            self._settled.append((self._unsettled.pop(0).sequence, self._newest))

    def removable(self, applied: int) -> int:
        """The newest sequence up to which all may go when ``applied`` is; 0 when nothing may. Earlier ones are forgotten."""
        sequence = 0
        while self._settled and self._settled[0][1] <= applied:
            sequence, _ = self._settled.popleft()
        return sequence


class CopyRoom:
    """Removes applied messages from a stream that is half full, while a copy runs."""

    def __init__(self, stream: SnapshotStream, bucket: StateBucket, borders: Borders) -> None:
        self._stream = stream
        self._bucket = bucket
        self._borders = borders

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.make()
            except TransientError as error:
                log.warning("applied rows are not removed now", reason=str(error))
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def make(self) -> None:
        state = await self._stream.state()
        if state is None or state.bytes < state.max_bytes // 2:
            return
        border = self._borders.removable(await applied_by_all(self._bucket))
        if border >= state.first_sequence:
            await self._stream.purge_up_to(border)
            log.info("applied rows removed", stream=self._stream.name, last_removed=border)


class CopyRetention:
    """Empties the stream some time after the copy. ``retention_s`` is the least age of what is removed."""

    def __init__(self, stream: SnapshotStream, bucket: StateBucket, retention_s: float) -> None:
        self._stream = stream
        self._bucket = bucket
        self._retention = timedelta(seconds=retention_s)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.purge()
            except TransientError as error:
                log.warning("the copied rows are not removed now", reason=str(error))
            await asyncio.sleep(RETENTION_INTERVAL_S)

    async def purge(self) -> None:
        snapshot = await Ledger(self._bucket).load_snapshot()
        if snapshot is None or snapshot.state is not CopyState.FINISHED:
            return
        is_old = datetime.fromisoformat(snapshot.finished_at) < datetime.now(UTC) - self._retention
        if not is_old or await applied_by_all(self._bucket) < snapshot.last_sequence:
            return
        state = await self._stream.state()
        if state is not None and state.messages:
            await self._stream.purge_up_to(snapshot.last_sequence)
            log.info("copied rows removed", stream=self._stream.name, last_removed=snapshot.last_sequence)


async def applied_by_all(bucket: StateBucket) -> int:
    """The newest sequence of the snapshot stream that every registered worker has applied; 0 when there is no worker."""
    entries = [await bucket.get(key) for key in await bucket.keys() if key.startswith(WORKER_PREFIX)]
    return min((entry.value.get("snapshot_sequence", 0) for entry in entries if entry is not None), default=0)
