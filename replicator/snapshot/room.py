"""Making room in the snapshot stream while a copy runs, and emptying it after.

A copy may be larger than its stream: what every registered worker has applied is removed once the stream is half full. Two things
must stay. A range that is not finished needs its newest message, for a task that takes it up looks there how far it has come. And
a body in chunks needs all of them until its last one is applied. Both are kept by the same rule: the stream's end is noted
together with the ranges that are open then; once all of these are finished, everything before that end belongs to finished
ranges, and their last messages lie before the end of the stream as it is by then.

After the copy everything is removed once every worker has applied it and it is older than the retention time. Without any
registered worker nothing is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from shared import telemetry
from shared.errors import TransientError
from shared.jetstream import SnapshotStream
from shared.ledger import CopyState, Ledger
from shared.state import WORKER_PREFIX, StateBucket

CHECK_INTERVAL_S = 1.0
RETENTION_INTERVAL_S = 60.0

log = telemetry.logger(__name__)

OpenRanges = Callable[[], frozenset[tuple[int, int]]]
"""The ranges, by table oid and number, that were begun and are not finished."""


@dataclass(slots=True)
class _Border:
    """Messages up to ``sequence`` may go when everything up to ``needed`` is applied (None: ranges are still open)."""

    sequence: int
    open_ranges: set[tuple[int, int]]
    needed: int | None = None


@dataclass(slots=True)
class Borders:
    """Which messages may go, from what was noted so far: pure."""

    _noted: list[_Border] = field(default_factory=list)

    def note(self, last_sequence: int, open_ranges: frozenset[tuple[int, int]]) -> None:
        """The stream ends at ``last_sequence`` and these ranges are open."""
        for border in self._noted:
            border.open_ranges &= open_ranges
            if border.needed is None and not border.open_ranges:
                border.needed = last_sequence
        if not self._noted or self._noted[-1].sequence < last_sequence:
            self._noted.append(_Border(last_sequence, set(open_ranges), None if open_ranges else last_sequence))

    def removable(self, applied: int) -> int:
        """The newest sequence up to which all may go when ``applied`` is; 0 when nothing may. Earlier ones are forgotten."""
        reached = [border for border in self._noted if border.needed is not None and border.needed <= applied]
        if not reached:
            return 0
        self._noted = [border for border in self._noted if border.sequence > reached[-1].sequence]
        return reached[-1].sequence


class CopyRoom:
    """Removes applied messages from a stream that is half full, while a copy runs."""

    def __init__(self, stream: SnapshotStream, bucket: StateBucket, open_ranges: OpenRanges) -> None:
        self._stream = stream
        self._bucket = bucket
        self._open_ranges = open_ranges
        self._borders = Borders()

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
        self._borders.note(state.last_sequence, self._open_ranges())  # a range that begins since then lies behind that end
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
