"""The replicator's record in the state bucket, under ``replicator``.

People read all of it. The next start depends on three fields: ``flushed_lsn`` (the slot is never confirmed beyond what the
stream or this record shows), ``stream_sequence`` (the stream held that much) and ``stream_created`` (of which stream).
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime

from pgsluice.replicator.progress import Progress
from pgsluice.replicator.receiver import Published
from pgsluice.replicator.tasks import repeat
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.wire.lsn import format_lsn

INTERVAL_S = 1.0


class Recorder:
    """Writes at most once every INTERVAL_S, and only when something changed."""

    def __init__(self, bucket: StateBucket, stream_created: str, progress: Progress, counts: Published) -> None:
        self._bucket = bucket
        self._stream_created = stream_created
        self._progress = progress
        self._counts = counts
        self._started_at = _now()
        self._written: ReplicatorRecord | None = None

    async def run(self) -> None:
        await repeat(self.write, INTERVAL_S, "progress is not recorded, an idle slot stays where it is")

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
