"""What the driver keeps between batches: its connection, the target tables it knows, temporary tables for small pieces.

What tasks keep between partitions: one connection per Python worker process and target, and what they know of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import psycopg

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSinkSettings
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.fold.piece import Piece, PieceKind, Share, StagedRows
from pgsluice.worker.sinks.postgres.merge.staging import SessionStages
from pgsluice.worker.sinks.postgres.own.known_tables import Known, KnownTables
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.target.catalog import Catalog, read_catalog
from pgsluice.worker.sinks.postgres.target.connection import Connection, connect, disable_foreign_keys
from pgsluice.worker.sinks.postgres.target.failure import PieceError
from pgsluice.worker.sinks.postgres.target.sequences import lacks_sequence, owned_sequences
from pgsluice.worker.sinks.postgres.target.table import TargetTable, prepare_target

NAMED_TABLES = 10
"""In one line of the log."""

_log = telemetry.logger(__name__)


class DriverSession:
    """One session at the target; a new connection makes a new one."""

    def __init__(
        self, connection: Connection, settings: PostgresSinkSettings, pending_keys: PendingKeys, known_tables: KnownTables
    ) -> None:
        """Raises TerminalError when foreign keys cannot be disabled."""
        self.connection = connection
        self.targets: dict[Table, TargetTable] = {}
        self.stages = SessionStages(connection)
        self.occupied: set[Table] = set()
        """Tables that inserted rows cannot be copied straight into."""
        self._without_sequences: dict[tuple[str, str], bool] = {}
        """Tables that may need one to take over from the source, and whether that was told."""
        self._sync_schema = settings.sync_schema
        self._sync_sequences = settings.sync_sequences
        self._pending_keys = pending_keys
        self._known_tables = known_tables
        self._may_lack_keys = True
        if settings.disable_foreign_keys:
            disable_foreign_keys(connection)

    def expect_keys(self) -> None:
        """Tables were copied, so keys may be pending."""
        self._may_lack_keys = True

    def build_keys(self) -> None:
        """Builds pending keys, if there are any. Raises PgsluiceError."""
        if self._may_lack_keys:
            self._pending_keys.build(self.connection)
            self._may_lack_keys = False

    def knows_any(self, tables: Iterable[Table]) -> bool:
        return any(table in self.targets for table in tables)

    def target_table(self, table: Table, catalog: Catalog | None = None, known: Known | None = None) -> TargetTable:
        """``catalog`` and ``known`` are what was read of the target just before, if it was."""
        if table not in self.targets:
            target = prepare_target(
                self.connection,
                table,
                self._pending_keys,
                self._known_tables,
                sync_schema=self._sync_schema,
                catalog=catalog,
                known=known,
            )
            if self._sync_sequences:
                names = [column.name for column in target.columns]
                target = replace(target, sequences=owned_sequences(self.connection, names, target.oid))
                if lacks_sequence(table, target.sequences):
                    self._without_sequences.setdefault(target.place, False)
            self.targets[table] = target
        return self.targets[table]

    def tell_missing_sequences(self) -> None:
        """One line for all tables that were looked at since the one before."""
        new = [".".join(place) for place, is_told in self._without_sequences.items() if not is_told]
        if not new:
            return
        self._without_sequences = dict.fromkeys(self._without_sequences, True)
        _log.warning(
            "tables at the target have no sequence: target-sync-sequences makes none, and where the source has one the target"
            " needs it to take over",
            tables=", ".join(new[:NAMED_TABLES]),
            more=max(0, len(new) - NAMED_TABLES),
        )

    def prepare(self, tables: Iterable[Table], shares: Iterable[Share]) -> None:
        """Makes what a merge of ``shares`` needs, each in a transaction of its own. Raises PieceError."""
        unknown = [table for table in tables if table not in self.targets]
        catalog = read_catalog(self.connection, unknown) if unknown else {}
        known = self._known_tables.read(self.connection, unknown) if unknown else {}
        for table in unknown:
            self.target_table(table, catalog, known)
        for table in unknown:  # when all are fit: a refusal may say that one of them is not the table it was taken for
            target = self.targets[table]
            self._known_tables.remember(self.connection, table, target.oid, target.column_numbers, known)
        self.tell_missing_sequences()
        self.stages.trim()
        for share in shares:
            for piece in share.pieces:
                if not isinstance(piece.content, StagedRows) and not self.goes_straight(piece):
                    self._prepare_stage(piece)

    def _prepare_stage(self, piece: Piece) -> None:
        """Raises PieceError: the table may have been altered since it was looked at."""
        try:
            self.stages.prepare(self.targets[piece.table], piece.kind)
        except psycopg.Error as error:
            raise PieceError(piece.table, error, has_rows=False) from None

    def goes_straight(self, piece: Piece) -> bool:
        """Whether the piece's rows are copied right into their table: they are new, and not looked at one by one."""
        target = self.targets[piece.table]
        is_possible = piece.kind is PieceKind.INSERT and target.takes_whole_rows and not target.sequences
        return is_possible and not self.stages.apart and piece.table not in self.occupied

    def tell_apart(self, *, apart: bool) -> None:
        """Whether the next pieces' rows have labels. Then every table is looked at again: a row must not be refused for what its
        table was like earlier."""
        if apart or self.stages.apart:
            self.forget()
        self.stages.apart = apart

    def forget(self) -> None:
        """The next ``prepare`` looks at every table again."""
        self.targets.clear()
        self.stages.clear()


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
