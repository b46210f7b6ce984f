"""A table as the target has it: what of the source's columns can be written, what identifies a row, what it refers to.

Emptying a table that is copied anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.sinks.postgres.own.known_tables import Known, KnownTables, known_columns
from pgsluice.worker.sinks.postgres.own.own_tables import DDL_LOCK
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.target.catalog import Catalog, CatalogEntry, TargetColumn, find_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.creation import create_table
from pgsluice.worker.sinks.postgres.target.failure import PieceError
from pgsluice.worker.sinks.postgres.target.keys import keys_of
from pgsluice.worker.sinks.postgres.target.sequences import OwnedSequence

_log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """``table`` is the version of the source's table this was made for; indexes count its columns. ``place`` is the target's
    table: schema and name; ``columns`` are those of it that the source's columns go to, which may be called otherwise.

    ``written`` are the columns a statement may set (a column that the target generates is not), ``fixed`` those of them that
    an UPDATE may not set (GENERATED ALWAYS AS IDENTITY). ``exact`` are columns whose ``=`` holds for equal text only: two
    numerics can be equal and yet read 1.0 and 1.00. ``domain_types`` are the types below the columns' domains ("" where there is
    none): a stage has those, because a domain may refuse the NULL of a value that was not sent. ``equality`` are the operators
    that the columns' indexes go by, with their schema ("" for ``=`` of pg_catalog). ``references`` are the OIDs of the tables
    that its foreign keys point to. ``not_null`` are columns that the target keeps free of NULL. ``sequences`` are to be kept
    ahead of the rows.
    """

    table: Table
    oid: int
    written: tuple[int, ...]
    fixed: frozenset[int]
    exact: frozenset[int]
    domain_types: tuple[str, ...]
    equality: tuple[str, ...]
    references: frozenset[int]
    place: tuple[str, str]
    columns: tuple[TargetColumn, ...] = field(hash=False)
    not_null: frozenset[int] = frozenset()
    sequences: tuple[OwnedSequence, ...] = ()

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.place)

    @property
    def copy_destination(self) -> sql.Composed:
        """For COPY of whole rows of ``table``."""
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.columns)
        return sql.SQL("{} ({})").format(self.identifier, names)

    @property
    def column_numbers(self) -> dict[str, int]:
        """Numbers of the columns here, by their names at the source."""
        return {column.name: there.number for column, there in zip(self.table.columns, self.columns, strict=True)}

    @property
    def takes_whole_rows(self) -> bool:
        """Whether a statement may set all columns that the source sends, of which there are some."""
        return 0 < len(self.written) == len(self.table.columns)

    @property
    def has_exact_key(self) -> bool:
        """Whether different keys of the source are different keys here."""
        return self.exact.issuperset(self.table.key)


def prepare_target(
    connection: Connection,
    table: Table,
    pending_keys: PendingKeys,
    known_tables: KnownTables,
    *,
    sync_schema: bool,
    copied: bool = False,
    catalog: Catalog | None = None,
    known: Known | None = None,
) -> TargetTable:
    """What the target has for ``table``; creates it when it is missing and ``sync_schema`` says so. ``copied``: for rows of a
    snapshot; a table that is created for them gets its keys later. ``catalog`` and ``known`` are what was read of it just before,
    if it was.

    Raises TerminalError when the table is missing or cannot take the source's rows, or when they are elsewhere.
    ``connection`` must not be in a transaction: a table that was created stays, whatever becomes of the batch.
    """
    place, known = (table.schema, table.name), known_tables.read(connection, [table]) if known is None else known
    entry = catalog.get(place) if catalog is not None else find_table(connection, *place)
    found_oid = None if entry is None else entry.oid
    known_tables.check_name(connection, table, known, found_oid)
    moved = known_tables.moved_to(connection, table, known, found_oid)
    if moved is not None:
        _log.warning("the target's table was renamed; its rows go there", table=table.qualified_name, name=".".join(moved))
        place, entry = moved, find_table(connection, *moved)
    if entry is None:
        if not sync_schema:
            raise TerminalError(
                f"table '{table.qualified_name}' does not exist at the target",
                "create it, or set sync-schema: true to have it created",
            )
        entry = _create(connection, table, pending_keys, known_tables, copied=copied)
    if entry.kind not in ("r", "p"):
        raise TerminalError(f"'{table.qualified_name}' at the target is not a table", "rename it, or route the table elsewhere")
    target = _target_table(table, entry, place, known_columns(table, entry.oid, known))
    if table.key and set(_key_names(target)) not in entry.unique_keys and not pending_keys.include(connection, table):
        raise _key_error(target, entry.partition_columns)
    return target


def _create(
    connection: Connection, table: Table, pending_keys: PendingKeys, known_tables: KnownTables, *, copied: bool
) -> CatalogEntry:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        if find_table(connection, table.schema, table.name) is None:
            create_table(connection, table)
            if copied:
                pending_keys.defer(connection, table)
            else:
                for key in keys_of(table):
                    connection.execute(key.definition())
            made = find_table(connection, table.schema, table.name)
            assert made is not None
            known_tables.remember(connection, table, made.oid, {column.name: column.number for column in made.columns})
    entry = find_table(connection, table.schema, table.name)
    assert entry is not None
    return entry


def _target_table(table: Table, entry: CatalogEntry, place: tuple[str, str], known_numbers: Mapping[str, int]) -> TargetTable:
    """``known_numbers`` are those of the columns here, by all names that they had at the source."""
    columns = _columns_here(table, entry, known_numbers)
    _check_columns(table, entry, columns, sql.Identifier(*place), known_numbers)
    at_target = [columns[column.name] for column in table.columns]
    return TargetTable(
        table,
        entry.oid,
        written=tuple(i for i, column in enumerate(at_target) if not column.generated),
        fixed=frozenset(i for i, column in enumerate(at_target) if column.identity == "a"),
        exact=frozenset(i for i, column in enumerate(at_target) if column.exact),
        domain_types=tuple(column.domain_type for column in at_target),
        equality=tuple(column.equality for column in at_target),
        references=entry.references,
        place=place,
        columns=tuple(at_target),
        not_null=frozenset(i for i, column in enumerate(at_target) if column.not_null),
    )


def _columns_here(table: Table, entry: CatalogEntry, known_numbers: Mapping[str, int]) -> dict[str, TargetColumn]:
    """By names of the source, where each of its columns goes: by its name, or else to the column that had that name."""
    by_name = {column.name: column for column in entry.columns}
    by_number = {column.number: column for column in entry.columns}
    own = {column.name for column in table.columns}
    found = {name: by_name[name] for name in own if name in by_name}
    for name in own - found.keys():
        renamed = by_number.get(known_numbers.get(name, 0))
        if renamed is not None and renamed.name not in own:
            found[name] = renamed
    return found


def _check_columns(
    table: Table,
    entry: CatalogEntry,
    found: Mapping[str, TargetColumn],
    identifier: sql.Identifier,
    known_numbers: Mapping[str, int],
) -> None:
    for column in table.columns:
        if column.name not in found:
            raise _missing_column(table, column, identifier, _earlier_columns(table, entry, known_numbers))
    taken = {column.number for column in found.values()}
    for extra in entry.columns:
        filled = extra.has_default or extra.generated or extra.identity
        if extra.not_null and not filled and extra.number not in taken:
            drop = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL").format(identifier, sql.Identifier(extra.name))
            raise TerminalError(
                f"column '{extra.name}' of table '{table.qualified_name}' at the target is NOT NULL without a default, and the"
                " source does not have it",
                f"give it a default, or run there: {drop.as_string()}",
            )


def _earlier_columns(table: Table, entry: CatalogEntry, known_numbers: Mapping[str, int]) -> list[str]:
    """Columns at the target that the source had, and has no longer under that name."""
    gone = known_numbers.keys() - {column.name for column in table.columns}
    return [column.name for column in entry.columns if column.name in gone and known_numbers[column.name] == column.number]


def _missing_column(table: Table, column: Column, identifier: sql.Identifier, earlier: Sequence[str]) -> TerminalError:
    name = sql.Identifier(column.name)
    add = sql.SQL("ALTER TABLE {} ADD COLUMN {} ").format(identifier, name).as_string() + column.type_name
    renames = [sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(identifier, sql.Identifier(old), name) for old in earlier]
    rename = " or ".join(statement.as_string() for statement in renames)
    return TerminalError(
        f"table '{table.qualified_name}' at the target has no column '{column.name}'",
        f"run there: {add}{f' (if the source renamed a column to that: {rename})' if rename else ''}; then start again, nothing"
        " is lost",
    )


def _key_names(target: TargetTable) -> list[str]:
    return [target.columns[i].name for i in target.table.key]


def _key_error(target: TargetTable, partition_columns: Sequence[str]) -> TerminalError:
    table, names = target.table, _key_names(target)
    if not set(partition_columns) <= set(names):
        return TerminalError(
            f"table '{table.qualified_name}' at the target is partitioned by {', '.join(partition_columns)}, so no unique index"
            f" there can be on the source's key ({', '.join(names)}) alone",
            "make a unique index on key and partition columns together, on both sides, and have the source's rows identified"
            " by it: ALTER TABLE … REPLICA IDENTITY USING INDEX …",
        )
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    create = sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(target.identifier, columns)
    return TerminalError(
        f"table '{table.qualified_name}' at the target has no unique index on its key ({', '.join(names)})",
        f"run there: {create.as_string()}; then start again, nothing is lost",
    )


def identity_error(target: TargetTable) -> TerminalError:
    """For a batch that changes a value in one of ``target.fixed``."""
    table = target.table
    names = [sql.Identifier(target.columns[i].name) for i in sorted(target.fixed)]
    alter = sql.SQL("ALTER TABLE {} ").format(target.identifier) + sql.SQL(", ").join(
        sql.SQL("ALTER COLUMN {} SET GENERATED BY DEFAULT").format(name) for name in names
    )
    return TerminalError(
        f"the source changed a value of a column that is GENERATED ALWAYS AS IDENTITY in table '{table.qualified_name}' at the"
        " target, where no UPDATE can",
        f"run there: {alter.as_string()}; then start again, nothing is lost",
    )


_SHAPE = """
SELECT c.relkind = 'p', EXISTS (SELECT FROM pg_constraint r WHERE r.contype = 'f' AND r.confrelid = c.oid AND r.conrelid <> c.oid)
FROM pg_class c WHERE c.oid = %s
"""


def empty_table(connection: Connection, target: TargetTable) -> None:
    """Partitions belong to the table, other children do not. TRUNCATE is refused for a table that foreign keys of others point
    to, even where they are disabled; its rows are deleted. Raises PieceError."""
    try:
        shape = connection.execute(_SHAPE, [target.oid]).fetchone()
        is_partitioned, is_referenced = shape or (False, False)
        only = sql.SQL("" if is_partitioned else "ONLY ")
        statement = sql.SQL("DELETE FROM {}{}" if is_referenced else "TRUNCATE TABLE {}{}")
        connection.execute(statement.format(only, target.identifier))
    except psycopg.Error as error:
        raise PieceError(target.table, error) from None
