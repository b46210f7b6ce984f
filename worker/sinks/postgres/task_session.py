"""What tasks keep between partitions: one connection per Python worker process and target, and what they know of its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shared.settings import PostgresSinkSettings
from shared.table import Table
from worker.sinks.postgres.connection import Connection, connect, disable_foreign_keys
from worker.sinks.postgres.failure import PieceError
from worker.sinks.postgres.known_tables import KnownTables
from worker.sinks.postgres.pending_keys import PendingKeys
from worker.sinks.postgres.target_table import TargetTable, prepare_target

T = TypeVar("T")


class TaskSession:
    """``occupied`` are tables in which copied rows met rows of the same key."""

    def __init__(self, settings: PostgresSinkSettings, pending_keys: PendingKeys, known_tables: KnownTables) -> None:
        self.occupied: set[Table] = set()
        self._settings = settings
        self._pending_keys = pending_keys
        self._known_tables = known_tables
        self._connection: Connection | None = None
        self._tables: dict[Table, TargetTable] = {}

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._settings, "pgsluice task")
            # What a crash of the target takes of a task's work is noticed and done again; waiting for the disk buys nothing.
            self._connection.execute("SET synchronous_commit = off")
            if self._settings.disable_foreign_keys:
                disable_foreign_keys(self._connection)
        return self._connection

    def target_table(self, table: Table, *, copied: bool = False) -> TargetTable:
        """``copied``: for rows of a snapshot, which are loaded here. Where changes go is remembered by the driver."""
        if table not in self._tables:
            connection, sync_schema = self.connection(), self._settings.sync_schema
            known = self._known_tables.read(connection, [table])
            target = prepare_target(
                connection, table, self._pending_keys, self._known_tables, sync_schema=sync_schema, copied=copied, known=known
            )
            if copied:
                self._known_tables.remember(connection, table, target.oid, target.column_numbers, known)
            self._tables[table] = target
        return self._tables[table]

    def forget(self) -> None:
        """Every table is looked at again."""
        self._tables.clear()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._tables.clear()
        self.occupied.clear()


_sessions: dict[tuple[PostgresSinkSettings, PendingKeys, KnownTables], TaskSession] = {}


def in_task_session(
    settings: PostgresSinkSettings, pending_keys: PendingKeys, known_tables: KnownTables, work: Callable[[TaskSession], T]
) -> T:
    """What ``work`` returns, with this process's session. One kept from an earlier task may be broken, or know tables as they
    were; then a new one tries again. Raises what ``work`` raises."""
    key = (settings, pending_keys, known_tables)
    session = _sessions.setdefault(key, TaskSession(*key))
    while True:
        kept = session.is_open
        try:
            return work(session)
        except PieceError:
            session.close()
            if not kept:
                raise
