"""The worker's durable position: its row in ``pgsluice.applied``, moved by the transaction that merges the data.

group_name, worker   whose position it is
sequence             every message up to this one of the change stream is applied
snapshot_sequence    the same of the snapshot stream
commit_lsn, committed_at      of the newest source transaction applied
stream_created       the stream that ``sequence`` counts in
rules                hash of the rules and routes that the newest batch went through, '' without any
batches, changes, copied_rows     what was applied in all, for people
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from psycopg import sql

from pgsluice.shared.wire.lsn import format_lsn, parse_lsn
from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.sink import Applied

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_TABLE = sql.Identifier(TARGET_SCHEMA, "applied")


class AppliedRow:
    """The row of one worker of one group."""

    def __init__(self, group: str, worker: str) -> None:
        self._key = [group, worker]
        self._lock = sql.SQL(
            "SELECT sequence, commit_lsn::text, committed_at, stream_created, snapshot_sequence, rules FROM {}"
            " WHERE group_name = %s AND worker = %s FOR UPDATE"
        ).format(_TABLE)
        self._insert = sql.SQL(
            "INSERT INTO {}"
            " (group_name, worker, sequence, commit_lsn, committed_at, stream_created, batches, changes, updated_at)"
            " VALUES (%s, %s, 0, '0/0', %s, '', 0, 0, now()) ON CONFLICT DO NOTHING"
        ).format(_TABLE)
        self._update = sql.SQL(
            "UPDATE {} SET sequence = %s, commit_lsn = %s, committed_at = %s, stream_created = %s, snapshot_sequence = %s,"
            " rules = %s, batches = batches + 1, changes = changes + %s, copied_rows = copied_rows + %s, updated_at = now()"
            " WHERE group_name = %s AND worker = %s"
        ).format(_TABLE)

    def ensure(self, connection: Connection) -> bool:
        """Whether the row had to be made: the worker begins."""
        return connection.execute(self._insert, [*self._key, _POSTGRES_EPOCH]).rowcount == 1

    def lock(self, connection: Connection) -> Applied | None:
        """The position, locked until the transaction ends; waits for a transaction that is moving it. None without a row."""
        row = connection.execute(self._lock, self._key).fetchone()
        if row is None:
            return None
        sequence, commit_lsn, committed_at, stream_created, snapshot_sequence, rules = row
        since_epoch = (committed_at - _POSTGRES_EPOCH) // _MICROSECOND
        return Applied(sequence, parse_lsn(commit_lsn), since_epoch, stream_created, snapshot_sequence, rules)

    def move(self, connection: Connection, applied: Applied, *, changes: int = 0, copied_rows: int = 0) -> None:
        committed_at = _POSTGRES_EPOCH + applied.committed_at * _MICROSECOND
        position = [applied.sequence, format_lsn(applied.commit_lsn), committed_at, applied.stream_created]
        connection.execute(self._update, [*position, applied.snapshot_sequence, applied.rules, changes, copied_rows, *self._key])
