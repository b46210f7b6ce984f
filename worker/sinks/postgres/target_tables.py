"""The target's tables that a session knows: each is read when rows for it come first, and created if it is missing.

pgsluice's own tables hold the destination of a table's rows when it was renamed on either side (``own.known_tables``),
and which of its keys are yet to be built (``own.pending_keys``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TerminalError
from pgsluice.shared.preflight.finding import raise_all
from pgsluice.shared.wire.table import Table
from pgsluice.worker.definitions.policy import DefinitionAction, DefinitionKind, Policies
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.own.known_tables import Known, KnownTables, TableDestination, known_columns
from pgsluice.worker.sinks.postgres.own.own_tables import DDL_LOCK
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.target.catalog import Catalog, CatalogEntry, find_table, read_catalog
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.key_types import check_key_types
from pgsluice.worker.sinks.postgres.target.sequences import MissingSequences, owned_sequences
from pgsluice.worker.sinks.postgres.target.table import (
    TargetTable,
    check_row_security,
    create_table,
    has_unique_key,
    key_error,
    keys_of,
    missing_error,
    target_table,
)
from pgsluice.worker.sinks.postgres.target.type_names import TEXT

_log = telemetry.logger(__name__)


class TargetTables(Mapping[Table, TargetTable]):
    """Tables that were read since ``forget``. With ``missing_sequences`` they have their sequences, which must be kept
    ahead of the rows; tables without one are noted there."""

    def __init__(
        self,
        settings: PostgresSinkSettings,
        pending_keys: PendingKeys,
        known_tables: KnownTables,
        policies: Policies,
        missing_sequences: MissingSequences | None = None,
    ) -> None:
        self._sync_schema = settings.sync_schema
        self._pending_keys = pending_keys
        self._known_tables = known_tables
        self._policies = policies
        self._missing_sequences = missing_sequences
        self._tables: dict[Table, TargetTable] = {}

    def __getitem__(self, table: Table) -> TargetTable:
        return self._tables[table]

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def forget(self) -> None:
        """Forgets the tables: each is checked again."""
        self._tables.clear()

    def look_at(self, connection: Connection, tables: Iterable[Table], *, copied: bool = False, remember: bool = False) -> None:
        """Reads the unknown ones of ``tables``, and creates missing tables if ``sync_schema`` is set. ``copied``: for
        rows of a snapshot; a table that is created for them gets its keys later. ``remember``: notes where the rows go.

        Raises TerminalError when a table is missing or cannot take the source's rows, or when they are elsewhere.
        ``connection`` must not be in a transaction: a created table stays, also if the batch fails.
        """
        unknown = [table for table in tables if table not in self._tables]
        if not unknown:
            return
        catalog, known = read_catalog(connection, unknown), self._known_tables.read(connection, unknown)
        raise_all(self._look_at_all(connection, unknown, catalog, known, copied=copied), "the target's tables")
        if remember:  # when all are fit: one of them may not be the table it was taken for
            self._remember(connection, unknown, known)

    def foresee(self, connection: Connection, tables: Iterable[Table]) -> None:
        """Notes the destinations of the ``tables`` that exist and fit, so that definitions alter them before their
        first row comes. For others the first row raises the error. ``connection`` as in ``look_at``."""
        wanted = list(tables)
        catalog, known = read_catalog(connection, wanted), self._known_tables.read(connection, wanted)
        there = [table for table in wanted if (table.schema, table.name) in catalog]
        self._look_at_all(connection, there, catalog, known, copied=False)
        self._remember(connection, [table for table in there if table in self._tables], known)

    def _look_at_all(
        self, connection: Connection, tables: Iterable[Table], catalog: Catalog, known: Known, *, copied: bool
    ) -> list[PgsluiceError]:
        """Returns why the others are not known now."""
        errors: list[PgsluiceError] = []
        for table in tables:
            try:
                self._tables[table] = self._look_at(connection, table, catalog, known, copied=copied)
            except TerminalError as error:
                errors.append(error)
        return errors

    def _remember(self, connection: Connection, tables: Iterable[Table], known: Known) -> None:
        targets = [self._tables[table] for table in tables]
        destinations = [TableDestination(target.table, target.oid, target.column_numbers, target.texts) for target in targets]
        self._known_tables.remember(connection, destinations, known)

    def _look_at(self, connection: Connection, table: Table, catalog: Catalog, known: Known, *, copied: bool) -> TargetTable:
        place, entry = self._find(connection, table, catalog, known)
        if entry is None:
            if not self._sync_schema:
                raise missing_error(table)
            entry = self._create(connection, table, copied=copied)
        check_row_security(connection, table, entry)
        leaves_out = self._policies.action(DefinitionKind.ADD_COLUMN, table.source_name) is DefinitionAction.IGNORE
        target = target_table(table, entry, place, known_columns(table, entry.oid, known), leaves_out=leaves_out)
        if not has_unique_key(target, entry) and not self._pending_keys.include(connection, table):
            raise key_error(target, entry.partition_columns)
        check_key_types(target, entry)
        return target if self._missing_sequences is None else self._with_sequences(connection, target, self._missing_sequences)

    def _find(
        self, connection: Connection, table: Table, catalog: Catalog, known: Known
    ) -> tuple[tuple[str, str], CatalogEntry | None]:
        """Returns the destination of ``table``, and its entry."""
        place = (table.schema, table.name)
        entry = catalog.get(place)
        found_oid = None if entry is None else entry.oid
        self._known_tables.check_name(connection, table, known, found_oid)
        moved = self._known_tables.moved_to(connection, table, known, found_oid)
        if moved is None:
            return place, entry
        if moved != place:  # else another task has made it since the catalog was read
            _log.warning("the target's table was renamed; its rows go there", table=table.qualified_name, name=".".join(moved))
        return moved, find_table(connection, *moved)

    def _create(self, connection: Connection, table: Table, *, copied: bool) -> CatalogEntry:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
            if find_table(connection, table.schema, table.name) is None:
                create_table(connection, table)
                if copied:
                    self._pending_keys.defer(connection, table)
                else:
                    for key in keys_of(table):
                        connection.execute(key.definition())
                made = find_table(connection, table.schema, table.name)
                assert made is not None
                numbers = {column.name: column.number for column in made.columns}
                texts = frozenset(column.name for column in made.columns if column.type_name == TEXT)
                self._known_tables.remember(connection, [TableDestination(table, made.oid, numbers, texts, is_made=True)])
        entry = find_table(connection, table.schema, table.name)
        assert entry is not None
        return entry

    def _with_sequences(self, connection: Connection, target: TargetTable, missing: MissingSequences) -> TargetTable:
        names = [column.name for column in target.columns]
        sequences = owned_sequences(connection, names, target.oid)
        missing.note(target.table, target.place, sequences)
        return replace(target, sequences=sequences)
