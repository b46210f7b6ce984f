"""Places in the streams that a worker has to notice: its own end (``--until-sequence``), and the end of a copy."""

from __future__ import annotations

from dataclasses import dataclass

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyState, Ledger
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.sinks.sink import Applied

CURRENT = "current"


@dataclass(frozen=True, slots=True)
class DrainTarget:
    """The last messages of both streams that have to be applied."""

    snapshot_sequence: int
    sequence: int

    def is_reached(self, applied: Applied) -> bool:
        return applied.snapshot_sequence >= self.snapshot_sequence and applied.caught_up_sequence >= self.sequence


def check_until(until: str) -> None:
    """Raises UsageError when ``until`` is neither "", "current" nor a sequence."""
    if until and until != CURRENT and not (until.isascii() and until.isdecimal()):
        raise UsageError(f"until-sequence {until!r} is neither a stream sequence nor 'current'", "write 'current' or a number")


async def find_drain_target(client: Client, names: GroupNames, until: str) -> DrainTarget | None:
    """Returns None while a copy runs, or the change stream does not reach ``until`` yet. ``current``: what the stream
    holds now.

    The target lies at the end of the last transaction that is complete at ``until``.
    """
    stream = ChangeStream(client, names)
    copy = await Ledger(StateBucket(client, names)).load_snapshot()
    if copy is not None and copy.state is CopyState.RUNNING:
        return None
    last = await stream.last_message()
    reached = last if until == CURRENT else await stream.message(int(until))
    settled = 0 if reached is None else MessageHeaders.decode(reached.headers).settled
    if reached is None and until != CURRENT and (last is None or last.sequence < int(until)):
        return None
    return DrainTarget(copy.last_sequence if copy else 0, settled)


class CopyEnd:
    """The end of the newest copy. It is handled once per copy and start of the worker."""

    def __init__(self, bucket: StateBucket) -> None:
        self._ledger = Ledger(bucket)
        self._handled_sequence = 0

    def may_be_reached(self, applied: Applied) -> bool:
        """Returns whether copied rows were applied since the last end."""
        return applied.snapshot_sequence > self._handled_sequence

    def is_handled(self, snapshot_sequence: int) -> bool:
        """Returns whether it was handled after all copied rows up to there were applied."""
        return snapshot_sequence <= self._handled_sequence

    async def is_reached(self, applied: Applied) -> bool:
        """Returns whether there is an end to handle. Asks the broker when there may be one."""
        if not self.may_be_reached(applied):
            return False
        copy = await self._ledger.load_snapshot()
        return copy is not None and copy.state is CopyState.FINISHED and copy.last_sequence <= applied.snapshot_sequence

    def note_handled(self, applied: Applied) -> None:
        self._handled_sequence = applied.snapshot_sequence
