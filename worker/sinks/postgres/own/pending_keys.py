"""Keys that are built when their table is full: the table ``pgsluice.pending_keys``.

A table created for a copy gets its keys when the copy is complete: building an index once costs a fraction of keeping
it up to date row by row. The note is written by the transaction that makes the table, and removed by the one that
builds the key, so no crash loses a key.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgsluice.shared import telemetry
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.target.catalog import unique_keys
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import target_error
from pgsluice.worker.sinks.postgres.target.table import Key, keys_of

BUILD_MEMORY = "256MB"
"""Sorts about ten million small keys in memory; the server's own setting counts where it is larger."""

_TABLE = own_table("pending_keys")
_INSERT = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s)").format(_TABLE)
_SELECT = sql.SQL(
    "SELECT table_schema, table_name, columns, is_primary FROM {} WHERE group_name = %s AND worker = %s"
    " ORDER BY table_schema, table_name, is_primary DESC"
).format(_TABLE)
_FIND = sql.SQL("SELECT FROM {} WHERE group_name = %s AND worker = %s AND table_schema = %s AND table_name = %s LIMIT 1").format(
    _TABLE
)
_DELETE = sql.SQL(
    "DELETE FROM {} WHERE group_name = %s AND worker = %s AND table_schema = %s AND table_name = %s AND is_primary = %s"
).format(_TABLE)
_RAISE_MEMORY = (
    "SELECT set_config('maintenance_work_mem', %(memory)s, true)"
    " WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < pg_size_bytes(%(memory)s)"
)

_log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingKeys:
    """Pending keys of tables that one worker of one group created."""

    group: str
    worker: str

    def defer(self, connection: Connection, table: Table) -> None:
        """Notes the keys, in the transaction that creates ``table`` without them."""
        for key in keys_of(table):
            values = [self.group, self.worker, key.schema, key.table, list(key.columns), key.is_primary]
            connection.execute(_INSERT, values)

    def include(self, connection: Connection, table: Table) -> bool:
        """Returns whether a key of ``table`` is still to be built."""
        return connection.execute(_FIND, [self.group, self.worker, table.schema, table.name]).rowcount == 1

    def build(self, connection: Connection) -> None:
        """Builds all of them, each in a separate transaction; leaves out one that another session built meanwhile.
        Raises PgsluiceError."""
        for row in connection.execute(_SELECT, [self.group, self.worker]).fetchall():
            schema, name, columns, is_primary = row
            key = Key(schema, name, tuple(columns), is_primary)
            started = time.monotonic()
            try:
                with connection.transaction():
                    is_built = self._build(connection, key)
            except psycopg.Error as error:
                raise target_error(error, None, f"building the key of table '{schema}.{name}'") from None
            if is_built:
                seconds = time.monotonic() - started
                _log.info("built a key", table=f"{schema}.{name}", columns=",".join(columns), seconds=seconds)

    def _build(self, connection: Connection, key: Key) -> bool:
        """Builds the key; returns False when there was nothing to build."""
        identifier = sql.Identifier(key.schema, key.table).as_string()
        found = connection.execute("SELECT to_regclass(%s)::oid", [identifier]).fetchone()
        oid = found[0] if found else None
        is_missing = oid is not None and set(key.columns) not in unique_keys(connection, [oid]).get(oid, [])
        if is_missing:
            connection.execute(_RAISE_MEMORY, {"memory": BUILD_MEMORY})
            connection.execute(key.definition())
        connection.execute(_DELETE, [self.group, self.worker, key.schema, key.table, key.is_primary])
        return is_missing
