"""A worker that does not come back holds messages until the stream is full and the source keeps its log: that is said early."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shared import telemetry
from shared.jetstream import ChangeStream
from shared.state import WORKER_PREFIX, StateBucket

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
