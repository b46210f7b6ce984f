"""Noticing that a copy is over: it is finished, and the worker has applied all of it."""

from __future__ import annotations

from shared.ledger import CopyState, Ledger
from shared.state import StateBucket
from worker.sinks.sink import Applied


class CopyEnd:
    """The end of the newest copy. It is handled once per copy and start of the worker."""

    def __init__(self, bucket: StateBucket) -> None:
        self._ledger = Ledger(bucket)
        self._handled_sequence = 0

    async def is_reached(self, applied: Applied) -> bool:
        """Whether there is an end to handle. Asks the broker only when copied rows were applied since the last one."""
        if applied.snapshot_sequence <= self._handled_sequence:
            return False
        copy = await self._ledger.load_snapshot()
        return copy is not None and copy.state is CopyState.FINISHED and copy.last_sequence <= applied.snapshot_sequence

    def note_handled(self, applied: Applied) -> None:
        self._handled_sequence = applied.snapshot_sequence
