"""What the driver keeps between batches: its connection, the target tables it knows, temporary tables for small pieces."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from shared.errors import TerminalError
from shared.settings import PostgresSinkSettings
from shared.table import Table
from worker.sinks.postgres.connection import Connection
from worker.sinks.postgres.piece import Share, StagedRows
from worker.sinks.postgres.staging import SessionStages
from worker.sinks.postgres.target_table import TargetTable, prepare_target


class DriverSession:
    """One session at the target; a new connection makes a new one."""

    def __init__(self, connection: Connection, settings: PostgresSinkSettings) -> None:
        """Raises TerminalError when foreign keys cannot be disabled."""
        self.connection = connection
        self.targets: dict[Table, TargetTable] = {}
        self.stages = SessionStages(connection)
        self._sync_schema = settings.sync_schema
        if settings.disable_foreign_keys:
            self._disable_foreign_keys()

    def _disable_foreign_keys(self) -> None:
        try:
            self.connection.execute("SET session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            raise TerminalError(
                "the target user may not set session_replication_role, which disable-foreign-keys needs",
                f'run there: GRANT SET ON PARAMETER session_replication_role TO "{self.connection.info.user}",'
                " or set disable-foreign-keys: false",
            ) from None

    def knows_any(self, tables: Iterable[Table]) -> bool:
        return any(table in self.targets for table in tables)

    def prepare(self, tables: Iterable[Table], shares: Iterable[Share]) -> None:
        """Makes what a merge of ``shares`` needs, each in a transaction of its own."""
        for table in tables:
            if table not in self.targets:
                self.targets[table] = prepare_target(self.connection, table, sync_schema=self._sync_schema)
        self.stages.trim()
        for share in shares:
            for piece in share.pieces:
                if not isinstance(piece.content, StagedRows):
                    self.stages.prepare(self.targets[piece.table], piece.kind)

    def forget(self) -> None:
        """The next ``prepare`` looks at every table again."""
        self.targets.clear()
        self.stages.clear()
