"""The LSN to confirm to the slot, and the replicator's record in the state bucket.

Two kinds of LSN may be confirmed. The end of a commit, once JetStream acknowledged every message up to it: then the
stream itself remembers. And a place in the WAL up to which the source had nothing to send (an idle publication in a
busy database): the stream knows nothing of it, so it is confirmed only after it was recorded in the state bucket, or a
later start could not distinguish an idle source from a broker that lost messages. The confirmed LSN never moves back.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from pgsluice.replicator.tasks import repeat
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.metrics.metric import SECONDS, Histogram
from pgsluice.shared.wire.position import LSN, format_lsn

RECORD_INTERVAL_S = 1.0


class _Mark(NamedTuple):
    """``lsn`` may be confirmed when messages up to ``sequence`` are acknowledged."""

    sequence: int
    lsn: LSN
    in_stream: bool


class Progress:
    """Pure, no I/O. ``confirmed`` is the slot's LSN, ``sequence`` the stream's last message, at the start of the
    session. Nothing later is confirmed before the server has shown that it has it."""

    def __init__(self, confirmed: LSN, sequence: int) -> None:
        self._marks: deque[_Mark] = deque()
        self._published_sequence = self._acknowledged_sequence = sequence
        self._confirmed = confirmed
        self._recordable = confirmed
        self.received = confirmed
        """The newest WAL end that the server sent."""

    @property
    def confirmed(self) -> LSN:
        """The highest LSN up to which the slot may discard WAL."""
        return self._confirmed

    @property
    def recordable(self) -> LSN:
        """The highest LSN that may be recorded as done; at least ``confirmed``."""
        return max(self._recordable, self._confirmed)

    @property
    def acknowledged_sequence(self) -> int:
        return self._acknowledged_sequence

    def published(self, sequence: int, flushed: LSN) -> None:
        """Notes a message that was handed to the publisher; ``sequence`` is its last chunk's, ``flushed`` its header."""
        self._published_sequence = sequence
        self._mark(_Mark(sequence, flushed, in_stream=True))

    def caught_up(self, lsn: LSN) -> None:
        """Notes that whatever the source has for us below ``lsn`` is in messages handed to the publisher."""
        if self._marks and self._marks[-1].sequence == self._published_sequence and not self._marks[-1].in_stream:
            self._marks.pop()
        self._mark(_Mark(self._published_sequence, lsn, in_stream=False))

    def acknowledged(self, sequence: int) -> None:
        """Notes that JetStream holds every message up to ``sequence``."""
        self._acknowledged_sequence = max(self._acknowledged_sequence, sequence)
        self._settle_marks()

    def recorded(self, lsn: LSN) -> None:
        """Notes that ``lsn``, a former ``recordable``, is durable in the state bucket."""
        self._confirmed = max(self._confirmed, lsn)

    def _mark(self, mark: _Mark) -> None:
        self._marks.append(mark)
        self._settle_marks()

    def _settle_marks(self) -> None:
        while self._marks and self._marks[0].sequence <= self._acknowledged_sequence:
            mark = self._marks.popleft()
            if mark.in_stream:
                self._confirmed = max(self._confirmed, mark.lsn)
            else:
                self._recordable = max(self._recordable, mark.lsn)


@dataclass(slots=True)
class PublishedCounts:
    """Counters of this process's publishing since it started. ``committed_at`` is the newest commit's time, in
    microseconds since 2000; ``is_at_end``: the source reported, last at the Unix time ``reached_at``, that there is
    nothing after it. The seconds count how long messages took to be acknowledged, and how long none was accepted
    because the window, or the stream, was full."""

    messages: int = 0
    changes: int = 0
    body_bytes: int = 0
    sessions: int = 0
    committed_at: int = 0
    reached_at: float = 0.0
    is_at_end: bool = False
    acknowledged_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    window_blocked_s: float = 0.0
    full_blocked_s: float = 0.0

    def note_blocked(self, seconds: float, *, is_full: bool) -> None:
        if is_full:
            self.full_blocked_s += seconds
        else:
            self.window_blocked_s += seconds


class Recorder:
    """Keeps the replicator's record in the state bucket up to date: writes at most once every RECORD_INTERVAL_S, and only when
    something changed."""

    def __init__(self, bucket: StateBucket, stream_created: str, progress: Progress, counts: PublishedCounts) -> None:
        self._bucket = bucket
        self._stream_created = stream_created
        self._progress = progress
        self._counts = counts
        self._started_at = _now()
        self._written: ReplicatorRecord | None = None

    async def run(self) -> None:
        await repeat(self.write, RECORD_INTERVAL_S, "progress is not recorded, an idle slot stays where it is")

    async def write(self) -> None:
        """Raises TransientError when NATS does not answer; then nothing is confirmed on the record's account."""
        recordable = self._progress.recordable
        record = ReplicatorRecord(
            flushed_lsn=format_lsn(recordable),
            received_lsn=format_lsn(self._progress.received),
            stream_created=self._stream_created,
            stream_sequence=self._progress.acknowledged_sequence,
            messages=self._counts.messages,
            changes=self._counts.changes,
            body_bytes=self._counts.body_bytes,
            started_at=self._started_at,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        if record != self._written:
            await self._bucket.put(REPLICATOR_KEY, replace(record, updated_at=_now()))
            self._written = record
        self._progress.recorded(recordable)


def _now() -> str:
    return datetime.now(UTC).isoformat()
