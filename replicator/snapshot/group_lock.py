"""One copy of a group at a time: an advisory lock at the source, for copies and for runs of SQL pipelines."""

from __future__ import annotations

from typing import LiteralString

from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import Cause, TransientError

# Held by the connection, not by a transaction, and released when that is gone.
_LOCK: LiteralString = "SELECT pg_try_advisory_lock(hashtextextended('pgsluice copy of group ' || %s, 0))"
_UNLOCK: LiteralString = "SELECT pg_advisory_unlock(hashtextextended('pgsluice copy of group ' || %s, 0))"


async def lock_group(source: Source, group: str) -> None:
    """Keeps other copies of the group away for as long as ``source`` is connected. Raises TransientError when there is one."""
    if not await try_lock_group(source, group):
        raise TransientError(
            f"another replicator copies the tables of group {group!r}",
            "run only one; one that was killed is gone for the source in a moment",
            Cause.LOCK,
        )


async def try_lock_group(source: Source, group: str) -> bool:
    """Returns False if another session has the lock. It is released with the connection, or earlier with
    ``unlock_group``."""
    [(locked,)] = await source.rows("locking the group's copy", _LOCK, [group])
    return bool(locked)


async def unlock_group(source: Source, group: str) -> None:
    """Releases the lock at once: a server notices the end of a connection a little later."""
    await source.rows("unlocking the group's copy", _UNLOCK, [group])
