"""The worker's durable position: its row in ``pgsluice.applied``, moved by the transaction that merges the data.

group_name, worker   whose position it is
sequence             every message up to this one of the change stream is applied
commit_lsn, committed_at      of the newest source transaction applied
stream_created       the stream that ``sequence`` counts in
batches, changes     what was applied in all, for people
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from psycopg import sql

from shared.lsn import format_lsn, parse_lsn
from shared.names import TARGET_SCHEMA
from worker.sinks.postgres.connection import Connection
from worker.sinks.sink import Applied

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

DDL_LOCK = 0x706773_6C75_6963
"""Key of the advisory lock that whoever creates objects in the target holds, so that two never create the same one."""

_TABLE = sql.Identifier(TARGET_SCHEMA, "applied")

_CREATE = """
CREATE TABLE {} (
    group_name text NOT NULL,
    worker text NOT NULL,
    sequence bigint NOT NULL,
    commit_lsn pg_lsn NOT NULL,
    committed_at timestamptz NOT NULL,
    stream_created text NOT NULL,
    batches bigint NOT NULL,
    changes bigint NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (group_name, worker)
)
"""


def ensure_table(connection: Connection) -> None:
    """Creates the schema and the table when they are missing."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        found = connection.execute(
            "SELECT to_regnamespace(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL", [TARGET_SCHEMA, f"{TARGET_SCHEMA}.applied"]
        ).fetchone()
        has_schema, has_table = found or (False, False)
        if not has_schema:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(TARGET_SCHEMA)))
        if not has_table:
            connection.execute(sql.SQL(_CREATE).format(_TABLE))


class AppliedRow:
    """The row of one worker of one group."""

    def __init__(self, group: str, worker: str) -> None:
        self._key = [group, worker]
        self._lock = sql.SQL(
            "SELECT sequence, commit_lsn::text, committed_at, stream_created FROM {}"
            " WHERE group_name = %s AND worker = %s FOR UPDATE"
        ).format(_TABLE)
        self._insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, 0, '0/0', %s, '', 0, 0, now()) ON CONFLICT DO NOTHING").format(
            _TABLE
        )
        self._update = sql.SQL(
            "UPDATE {} SET sequence = %s, commit_lsn = %s, committed_at = %s, stream_created = %s, batches = batches + 1,"
            " changes = changes + %s, updated_at = now() WHERE group_name = %s AND worker = %s"
        ).format(_TABLE)

    def ensure(self, connection: Connection) -> None:
        connection.execute(self._insert, [*self._key, _POSTGRES_EPOCH])

    def lock(self, connection: Connection) -> Applied | None:
        """The position, locked until the transaction ends; waits for a transaction that is moving it. None without a row."""
        row = connection.execute(self._lock, self._key).fetchone()
        if row is None:
            return None
        sequence, commit_lsn, committed_at, stream_created = row
        return Applied(sequence, parse_lsn(commit_lsn), (committed_at - _POSTGRES_EPOCH) // _MICROSECOND, stream_created)

    def move(self, connection: Connection, applied: Applied, changes: int) -> None:
        committed_at = _POSTGRES_EPOCH + applied.committed_at * _MICROSECOND
        position = [applied.sequence, format_lsn(applied.commit_lsn), committed_at, applied.stream_created]
        connection.execute(self._update, [*position, changes, *self._key])
