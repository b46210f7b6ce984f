"""Where a worker that ends by itself has to come to: ``--until-sequence``."""

from __future__ import annotations

from dataclasses import dataclass

from nats.aio.client import Client

from shared.errors import UsageError
from shared.jetstream import ChangeStream
from shared.ledger import CopyState, Ledger
from shared.message import MessageHeaders
from shared.names import GroupNames
from shared.state import StateBucket
from worker.sinks.sink import Applied

CURRENT = "current"


@dataclass(frozen=True, slots=True)
class DrainTarget:
    """The last messages of both streams that have to be applied."""

    snapshot_sequence: int
    sequence: int

    def is_reached(self, applied: Applied) -> bool:
        return applied.snapshot_sequence >= self.snapshot_sequence and applied.sequence >= self.sequence


def check_until(until: str) -> None:
    """Raises UsageError when ``until`` is neither "", "current" nor a sequence."""
    if until and until != CURRENT and not (until.isascii() and until.isdecimal()):
        raise UsageError(f"until-sequence {until!r} is neither a stream sequence nor 'current'", "write 'current' or a number")


async def find_drain_target(client: Client, names: GroupNames, until: str) -> DrainTarget | None:
    """None while a copy runs, or the change stream does not reach ``until`` yet. ``current``: what the stream holds now.

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
