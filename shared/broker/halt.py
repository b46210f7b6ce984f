"""The reason why a group's replicator must not continue until an operator acts, under ``halt`` in the state bucket.

A replicator that found another history at its source writes it before it ends. Later starts end the same way: the
difference can disappear (a source that went back grows past its earlier position), and the rows in between would be
missing silently. ``pgsluice drop`` removes it with the group, ``pgsluice forget --halt`` alone, for an operator who
removed the cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.errors import HistoryError

HALT_KEY = "halt"

_LIFT = "or, when the right server or a restored broker is back, run 'pgsluice forget --halt' and start it"


@dataclass(frozen=True, slots=True)
class Halt:
    """``since`` is when it was found, RFC 3339."""

    fact: str
    remedy: str
    since: TimeText

    def error(self) -> HistoryError:
        return HistoryError(f"{self.fact} (found at {self.since})", f"{self.remedy}; {_LIFT}")


async def read_halt(bucket: StateBucket) -> Halt | None:
    """Returns None when the group may run."""
    entry = await bucket.read(HALT_KEY, Halt)
    return None if entry is None else entry.value


async def check_halt(bucket: StateBucket) -> None:
    """Raises HistoryError when the group must not run."""
    halt = await read_halt(bucket)
    if halt is not None:
        raise halt.error()


async def note_halt(bucket: StateBucket, error: HistoryError) -> None:
    """Keeps a reason that exists already. Raises TransientError when NATS does not answer."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    await bucket.create(HALT_KEY, Halt(error.fact, error.remedy, since))


async def lift_halt(bucket: StateBucket) -> bool:
    """Returns whether there was a halt."""
    if await bucket.get(HALT_KEY) is None:
        return False
    await bucket.delete(HALT_KEY)
    return True
