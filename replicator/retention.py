"""Removes old messages from a group's two streams.

``shared.broker.change_retention`` decides for the change stream; the replicator resumes from what stays. When the
stream is full the source keeps its log.

A copy may be larger than its stream, so while it runs what every registered worker has applied is removed once the
stream is half full, except messages that the copy needs to continue (``snapshot.held_ranges``). After the copy
everything is removed once every worker has applied it and it is older than the retention time.

Without any registered worker nothing is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from pgsluice.replicator.snapshot.held_ranges import EndedRange, HeldRanges
from pgsluice.replicator.snapshot.stream_share import size_of
from pgsluice.replicator.tasks import repeat, run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.change_retention import INTERVAL_S, ChangeRetention
from pgsluice.shared.broker.ledger import CopyState, Ledger
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StoredMessage, StreamState
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders

COPY_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


async def run_retention(changes: ChangeStream, rows: SnapshotStream, bucket: StateBucket, retention_s: float) -> None:
    """Removes old messages during a session, until it is cancelled."""
    of_changes = ChangeRetention(changes, bucket, retention_s).purge_and_warn
    removing = repeat(of_changes, INTERVAL_S, "old messages are not removed now")
    await run_until_first([removing, FinishedCopyRetention(rows, bucket, retention_s).run()])


class RunningCopyRetention:
    """Removes applied messages from a snapshot stream that is half full, while a copy runs, except messages that
    ``held`` names: first all up to the oldest of these, which costs JetStream least; then, if that does not help,
    subject by subject."""

    def __init__(self, stream: SnapshotStream, bucket: StateBucket, held: HeldRanges) -> None:
        self._stream = stream
        self._bucket = bucket
        self._held = held

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await repeat(self.purge, COPY_INTERVAL_S, "applied rows are not removed now")

    async def purge(self) -> None:
        state = await self._stream.state()
        if state is None or not _is_half_full(state):
            return
        applied = await copied_by_all(self._bucket)
        if applied < max(state.first_sequence, self._held.older):
            return
        ended = self._held.ended  # as they are now: a range that ends from here on may have unchecked messages
        needed = await self._needed(ended, applied)
        border = min([applied, *(sequence - 1 for sequence in needed.values())])
        if border >= state.first_sequence:
            await self._stream.purge_up_to(border)
            log.info("applied rows removed", stream=self._stream.name, last_removed=border)
            self._held.forget(one for one in ended if one.is_applied(border))
            state = await self._stream.state()
        if state is not None and _is_half_full(state):
            await self._purge_subjects(ended, needed, applied)

    async def _purge_subjects(self, ended: Sequence[EndedRange], needed: Mapping[str, int], applied: int) -> None:
        for subject, sequence in needed.items():
            await self._stream.purge_up_to(sequence - 1, subject)
        gone = [one for one in ended if one.subject not in needed and (one.last_sequence is None or one.is_applied(applied))]
        for one in gone:
            await self._stream.purge_up_to(applied, one.subject)
        self._held.forget(gone)

    async def _needed(self, ended: Sequence[EndedRange], applied: int) -> dict[str, int]:
        """Returns the first needed message by subject, for subjects with one before the end of the applied ones, or in
        a body that reaches across it."""
        needed = {subject: await self._first_in_hand(subject, applied) for subject in self._held.in_hand}
        for one in ended:
            if one.may_reach_across(applied):
                needed[one.subject] = await self._first_unapplied(one.subject, applied)
        return {subject: sequence for subject, sequence in needed.items() if sequence is not None}

    async def _first_in_hand(self, subject: str, applied: int) -> int | None:
        """Returns None when the stream holds nothing of the range."""
        newest = await self._stream.last_message_on(subject)
        if newest is None:
            return None
        if newest.sequence > applied:
            return await self._first_unapplied(subject, applied)
        if SnapshotHeaders.decode(newest.headers).chunk.is_last:
            return newest.sequence
        return await self._begin_of_body(subject, newest)

    async def _first_unapplied(self, subject: str, applied: int) -> int | None:
        """Returns the first chunk of the first body that is not applied; None when all are."""
        message = await self._stream.next_message_on(subject, applied + 1)
        return None if message is None else await self._begin_of_body(subject, message)

    async def _begin_of_body(self, subject: str, message: StoredMessage) -> int:
        """Returns the sequence of the first chunk. Numbers of a subject ascend, so this halves the stream; a body may
        have hundreds."""
        headers = SnapshotHeaders.decode(message.headers)
        if headers.chunk.index == 1:
            return message.sequence
        number = headers.number - headers.chunk.index + 1
        first, last = 1, message.sequence
        while first < last:
            middle = (first + last) // 2
            found = await self._stream.next_message_on(subject, middle) or message
            there = SnapshotHeaders.decode(found.headers).number
            if there == number:
                return found.sequence
            first, last = (found.sequence + 1, last) if there < number else (first, middle - 1)
        return first


class FinishedCopyRetention:
    """Empties the snapshot stream some time after the copy. ``retention_s`` is the least age of what is removed."""

    def __init__(self, stream: SnapshotStream, bucket: StateBucket, retention_s: float) -> None:
        self._stream = stream
        self._bucket = bucket
        self._retention = timedelta(seconds=retention_s)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await repeat(self.purge, INTERVAL_S, "the copied rows are not removed now")

    async def purge(self) -> None:
        snapshot = await Ledger(self._bucket).load_snapshot()
        if snapshot is None or snapshot.state is not CopyState.FINISHED:
            return
        is_old = datetime.fromisoformat(snapshot.finished_at) < datetime.now(UTC) - self._retention
        if not is_old or await copied_by_all(self._bucket) < snapshot.last_sequence:
            return
        state = await self._stream.state()
        if state is not None and state.messages:
            await self._stream.purge_up_to(snapshot.last_sequence)
            log.info("copied rows removed", stream=self._stream.name, last_removed=snapshot.last_sequence)


def _is_half_full(state: StreamState) -> bool:
    return state.bytes >= size_of(state) // 2


async def copied_by_all(bucket: StateBucket) -> int:
    """Returns the newest sequence of the snapshot stream that every registered worker has applied; 0 when there is no
    worker."""
    return min((report.snapshot_sequence for report in (await read_reports(bucket)).values()), default=0)
