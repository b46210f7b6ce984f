"""Which messages of the snapshot stream are loaded: the table ``pgsluice.copied``, one row per message beyond the position.

Copied rows go straight into their tables, by tasks. What makes that exactly once is the row here, which a task writes in the
transaction that loads the message: whoever tries the same message again (Spark, a successor after a crash, a batch that is cut
otherwise) finds it and loads nothing. The driver's transaction that moves the position removes the rows that it passes. A task
locks the position, so it either sees that it was moved and loads nothing, or ends before it is moved.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from psycopg import sql

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.worker.sinks.postgres.target.connection import Connection

_APPLIED = sql.Identifier(TARGET_SCHEMA, "applied")
_COPIED = sql.Identifier(TARGET_SCHEMA, "copied")

_LOCK = sql.SQL("SELECT snapshot_sequence FROM {} WHERE group_name = %s AND worker = %s FOR SHARE").format(_APPLIED)
_CLAIM = sql.SQL(
    "INSERT INTO {} SELECT %s, %s, sequence FROM unnest(%s::bigint[]) AS sequence WHERE sequence > %s ORDER BY sequence"
    " ON CONFLICT DO NOTHING RETURNING sequence"
).format(_COPIED)
_COUNT = sql.SQL("SELECT count(*) FROM {} WHERE group_name = %s AND worker = %s AND sequence = ANY(%s::bigint[])").format(_COPIED)
_FORGET = sql.SQL("DELETE FROM {} WHERE group_name = %s AND worker = %s AND sequence <= %s").format(_COPIED)


@dataclass(frozen=True, slots=True)
class CopiedMessages:
    """Those of one worker of one group. Each method belongs into a transaction of the caller."""

    group: str
    worker: str

    def claim(self, connection: Connection, sequences: Collection[int]) -> set[int]:
        """Those of ``sequences`` that are not loaded yet; they count as loaded when the transaction commits. Waits for other
        transactions that claim the same. In ascending order, so that two never wait for each other."""
        locked = connection.execute(_LOCK, [self.group, self.worker]).fetchone()
        if locked is None:
            raise TerminalError(
                f"the position of worker '{self.worker}' of group '{self.group}' is gone from pgsluice.applied",
                "start the worker again: it begins with the oldest message of the stream",
            )
        claimed = connection.execute(_CLAIM, [self.group, self.worker, list(sequences), locked[0]])
        return {sequence for (sequence,) in claimed.fetchall()}

    def check(self, connection: Connection, sequences: Collection[int]) -> None:
        """Raises TransientError when not all of ``sequences`` are loaded: tasks do not wait for the target's disk, so a crash of
        the target may undo what they reported. The commit that moves the position makes it durable, being later in the WAL."""
        found = connection.execute(_COUNT, [self.group, self.worker, list(sequences)]).fetchone()
        if found != (len(sequences),):
            raise TransientError("copied rows are gone from the target, as after a crash of it", "the batch is loaded again")

    def forget(self, connection: Connection, up_to_sequence: int) -> None:
        """For the transaction that moves the position to ``up_to_sequence``, or beyond."""
        connection.execute(_FORGET, [self.group, self.worker, up_to_sequence])
