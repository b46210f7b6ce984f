"""The applied changes: the worker's durable position, and the messages of copied rows that are loaded beyond it.

The row in ``pgsluice.applied`` is moved by the transaction that merges the data:

group_name, worker   owner of the position
sequence             every message up to this one of the change stream is applied
snapshot_sequence    the same of the snapshot stream
commit_lsn, committed_at      of the newest source transaction applied
stream_created       the stream that ``sequence`` counts in
catch_up             tables whose changes are applied up to an earlier place only (``CatchUp.encode``), '' without any
rules                hash of the rules and routes that the newest batch went through, '' without any
batches, changes, copied_rows     totals applied, for readers
run, run_unchanged   a SQL pipeline's newest run, and how many of its rows existed already, unchanged

Copied rows go straight into their tables, by tasks. Exactly once is ensured by one row per message in
``pgsluice.copied``, which a task writes in the transaction that loads the message, with how many of the loaded rows
existed unchanged before (``unchanged``, of all messages of the transaction in one row): a later try of the same message
(by Spark, by a successor after a crash, by a batch that is cut otherwise) finds it and loads nothing. The driver's
transaction that moves the position removes the rows that it passes. A task locks the position, so it either sees that
it was moved and loads nothing, or ends before it is moved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql

from pgsluice.shared.errors import Cause, SinkBehindError, TerminalError, TransientError
from pgsluice.shared.wire.position import POSTGRES_EPOCH, format_lsn, parse_lsn
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.sink import Applied, CatchUp, Lane, Receipt

_MICROSECOND = timedelta(microseconds=1)

_APPLIED = own_table("applied")
_COPIED = own_table("copied")

_LOCK = sql.SQL("SELECT snapshot_sequence FROM {} WHERE group_name = %s AND worker = %s FOR SHARE").format(_APPLIED)
_CLAIM = sql.SQL(
    "INSERT INTO {} SELECT %s, %s, sequence FROM unnest(%s::bigint[]) AS sequence WHERE sequence > %s ORDER BY sequence"
    " ON CONFLICT DO NOTHING RETURNING sequence"
).format(_COPIED)
_COUNT = sql.SQL("SELECT count(*) FROM {} WHERE group_name = %s AND worker = %s AND sequence = ANY(%s::bigint[])").format(_COPIED)
_FORGET = sql.SQL(
    "WITH gone AS (DELETE FROM {} WHERE group_name = %s AND worker = %s AND sequence <= %s RETURNING unchanged)"
    " SELECT coalesce(sum(unchanged), 0)::bigint FROM gone"
).format(_COPIED)
_NOTE_UNCHANGED = sql.SQL("UPDATE {} SET unchanged = %s WHERE group_name = %s AND worker = %s AND sequence = %s").format(_COPIED)
_ADD_UNCHANGED = sql.SQL(
    "UPDATE {} SET run = %s, run_unchanged = CASE WHEN run = %s THEN run_unchanged ELSE 0 END + %s"
    " WHERE group_name = %s AND worker = %s RETURNING run_unchanged"
).format(_APPLIED)


class AppliedRow:
    """The row of one worker of one group."""

    def __init__(self, group: str, worker: str) -> None:
        self._key = [group, worker]
        self._name = f"the position of worker '{worker}' of group '{group}' in pgsluice.applied"
        self._lock = sql.SQL(
            "SELECT sequence, commit_lsn::text, committed_at, stream_created, snapshot_sequence, rules, catch_up FROM {}"
            " WHERE group_name = %s AND worker = %s FOR UPDATE"
        ).format(_APPLIED)
        self._insert = sql.SQL(
            "INSERT INTO {}"
            " (group_name, worker, sequence, commit_lsn, committed_at, stream_created, batches, changes, updated_at)"
            " VALUES (%s, %s, 0, '0/0', %s, '', 0, 0, now()) ON CONFLICT DO NOTHING"
        ).format(_APPLIED)
        self._update = sql.SQL(
            "UPDATE {} SET sequence = %s, commit_lsn = %s, committed_at = %s, stream_created = %s, snapshot_sequence = %s,"
            " rules = %s, catch_up = %s, batches = batches + 1, changes = changes + %s, copied_rows = copied_rows + %s,"
            " updated_at = now()"
            " WHERE group_name = %s AND worker = %s"
        ).format(_APPLIED)

    def ensure(self, connection: Connection) -> bool:
        """Returns whether the row had to be made: the worker begins."""
        return connection.execute(self._insert, [*self._key, POSTGRES_EPOCH]).rowcount == 1

    def lock(self, connection: Connection) -> Applied | None:
        """Returns the position, locked until the transaction ends; waits for a transaction that is moving it. None
        without a row."""
        row = connection.execute(self._lock, self._key).fetchone()
        if row is None:
            return None
        sequence, commit_lsn, committed_at, stream_created, snapshot_sequence, rules, catch_up = row
        since_epoch = (committed_at - POSTGRES_EPOCH) // _MICROSECOND
        caught_up = CatchUp.decode(catch_up)
        return Applied(sequence, parse_lsn(commit_lsn), since_epoch, stream_created, snapshot_sequence, rules, caught_up)

    def lock_at(self, connection: Connection, applied: Applied) -> None:
        """Locks the position, which must be ``applied``, where this worker left it. Raises TerminalError and SinkBehindError."""
        found = self.lock(connection)
        if found == applied:
            return
        if found is None:
            raise TerminalError(f"{self._name} is gone", "restore the row, or the target as a whole, and start again")
        if found.is_behind(applied):
            raise SinkBehindError(
                f"{self._name} is before the position that this worker applied: the target has an earlier state again",
                "after a failover or a restore, start again: the worker continues from there",
            )
        raise TerminalError(
            f"{self._name} was moved by another process",
            "another worker of this name writes to this target; stop it, or give one of them another name",
        )

    def move(self, connection: Connection, applied: Applied, *, changes: int = 0, copied_rows: int = 0) -> None:
        committed_at = POSTGRES_EPOCH + applied.committed_at * _MICROSECOND
        catch_up = "" if applied.catch_up is None else applied.catch_up.encode()
        position = [applied.sequence, format_lsn(applied.commit_lsn), committed_at, applied.stream_created]
        position += [applied.snapshot_sequence, applied.rules, catch_up]
        connection.execute(self._update, [*position, changes, copied_rows, *self._key])

    def add_unchanged(self, connection: Connection, run: int, rows: int) -> int:
        """Adds ``rows`` of a batch of that run that existed already; returns the run's total."""
        [(total,)] = connection.execute(_ADD_UNCHANGED, [run, run, rows, *self._key]).fetchall()
        return int(total)


def not_applied(receipts: Sequence[Receipt], applied: Applied, stream_created: str) -> list[Receipt]:
    """Returns the ``receipts`` of a batch that ``applied`` does not cover. Raises TerminalError when it covers one in
    part."""
    lane = receipts[0].lane
    same_stream = lane is Lane.COPIED or stream_created == applied.stream_created
    last = applied.sequence_in(lane) if same_stream else 0
    rest = [receipt for receipt in receipts if receipt.last_sequence > last]
    if rest and rest[0].first_sequence <= last:
        raise TerminalError(
            f"a batch begins with message {rest[0].first_sequence}, inside the changes that are applied up to {last}",
            "start the worker again: it continues from the position",
        )
    return rest


@dataclass(frozen=True, slots=True)
class CopiedMessages:
    """Loaded messages of one worker of one group. Each method belongs into a transaction of the caller."""

    group: str
    worker: str

    def claim(self, connection: Connection, sequences: Collection[int]) -> set[int]:
        """Claims the ``sequences`` that are not loaded yet, and returns them; they are loaded when the transaction
        commits. Waits for other transactions that claim the same. In ascending order, so that two never wait for each
        other."""
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
            fact = "copied rows are gone from the target, as after a crash of it"
            raise TransientError(fact, "the batch is loaded again", Cause.TARGET)

    def note_unchanged(self, connection: Connection, sequence: int, rows: int) -> None:
        """Notes unchanged rows; ``sequence`` is one that the transaction claimed."""
        connection.execute(_NOTE_UNCHANGED, [rows, self.group, self.worker, sequence])

    def forget(self, connection: Connection, up_to_sequence: int) -> int:
        """Removes loaded messages, in the transaction that moves the position to ``up_to_sequence``, or beyond. Returns
        how many rows were noted as unchanged."""
        [(unchanged,)] = connection.execute(_FORGET, [self.group, self.worker, up_to_sequence]).fetchall()
        return int(unchanged)
