"""A table at the target: which of the source's columns can be written, the row's identity, and references.

``target_table`` describes an existing table, and raises if it cannot take the source's rows, with the statement that
would repair it. A table that is missing is made from the descriptor of the source's: columns, types, NOT NULL. Keys
have separate statements, because a table that is filled by a copy gets them when it is full (``own.pending_keys``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import psycopg
from psycopg import sql

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.sinks.postgres.target.catalog import LEFT_OUT, CatalogEntry, TargetColumn
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import PieceError
from pgsluice.worker.sinks.postgres.target.sequences import OwnedSequence
from pgsluice.worker.sinks.postgres.target.type_names import TEXT, known_type

_log = telemetry.logger(__name__)

_SHAPE = """
SELECT c.relkind = 'p', EXISTS (SELECT FROM pg_constraint r WHERE r.contype = 'f' AND r.confrelid = c.oid AND r.conrelid <> c.oid)
FROM pg_class c WHERE c.oid = %s
"""


def create_table(connection: Connection, table: Table) -> None:
    """Creates ``table`` without a key, and its schema when that is missing, in the connection's transaction.

    A type the target does not have becomes text. Identity and generated columns become plain ones: their values come from
    the source.
    """
    if connection.execute("SELECT to_regnamespace(quote_ident(%s))", [table.schema]).fetchone() == (None,):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(table.schema)))
    types = [known_type(connection, table.qualified_name, column.name, column.type_name) for column in table.columns]
    connection.execute(table_definition(table, types))
    _log.info("created a table at the target", table=table.qualified_name, columns=len(table.columns))


def table_definition(table: Table, types: list[str]) -> sql.Composed:
    """Returns CREATE TABLE with ``types`` as the columns' types, which must be types: they cannot be quoted."""
    parts: list[sql.Composable] = []
    for column, type_name in zip(table.columns, types, strict=True):
        not_null = sql.SQL(" NOT NULL" if column.not_null else "")
        parts.append(sql.SQL("{} {}{}").format(sql.Identifier(column.name), sql.SQL(type_name), not_null))
    return sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table.schema, table.name), sql.SQL(", ").join(parts))


@dataclass(frozen=True, slots=True)
class Key:
    """A primary key, or a unique index on what identifies a row otherwise."""

    schema: str
    table: str
    columns: tuple[str, ...]
    is_primary: bool

    def definition(self) -> sql.Composed:
        """Returns the statement that builds it."""
        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        statement = "ALTER TABLE {} ADD PRIMARY KEY ({})" if self.is_primary else "CREATE UNIQUE INDEX ON {} ({})"
        return sql.SQL(statement).format(sql.Identifier(self.schema, self.table), names)


def keys_of(table: Table) -> list[Key]:
    """Returns the primary key, and the key that replication goes by when that is another."""
    positions = [(c.primary_key_position, i) for i, c in enumerate(table.columns) if c.primary_key_position is not None]
    primary_key = tuple(i for _, i in sorted(positions))
    keys = [_key(table, primary_key, is_primary=True)] if primary_key else []
    if table.key and set(table.key) != set(primary_key):
        keys.append(_key(table, table.key, is_primary=False))
    return keys


def _key(table: Table, columns: tuple[int, ...], *, is_primary: bool) -> Key:
    return Key(table.schema, table.name, tuple(table.columns[i].name for i in columns), is_primary)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """``table`` is the version of the source's table this was made for; indexes count its columns. ``place`` is the
    target's table: schema and name; ``columns`` are its columns for the source's, which may have other names.

    ``written`` are the columns a statement may set (a column that the target generates is not), ``fixed`` the ones
    among them that an UPDATE may not set (GENERATED ALWAYS AS IDENTITY). ``exact`` are columns whose ``=`` holds for
    equal text only: two numerics can be equal and yet read 1.0 and 1.00. ``domain_types`` are the base types of the
    columns' domains ("" for no domain): a stage has those, because a domain may refuse the NULL of a value that was not
    sent. ``equality`` are the operators that the columns' indexes go by, with their schema ("" for ``=`` of
    pg_catalog). ``references`` are the OIDs of the tables that its foreign keys point to. ``not_null`` are columns in
    which no row of the target has NULL. ``sequences`` must be kept ahead of the rows. ``has_rules``: PostgreSQL may
    refuse MERGE and ON CONFLICT.
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
    is_partitioned: bool = False
    has_rules: bool = False

    @property
    def identifier(self) -> sql.Identifier:
        """The name for INSERT and COPY."""
        return sql.Identifier(*self.place)

    @property
    def rows(self) -> sql.Composed:
        """The table for statements that find rows: rows of partitions belong to it, rows of inheriting tables do not."""
        return sql.SQL("" if self.is_partitioned else "ONLY ") + self.identifier

    @property
    def copy_statement(self) -> bytes:
        """COPY of whole rows of ``table``."""
        return _copy_statement(self.place, tuple(column.name for column in self.columns))

    @property
    def column_numbers(self) -> dict[str, int]:
        """Numbers of the columns here, by their names at the source."""
        pairs = zip(self.table.columns, self.columns, strict=True)
        return {column.name: there.number for column, there in pairs if there is not LEFT_OUT}

    @property
    def texts(self) -> frozenset[str]:
        """The source's columns that are text here."""
        return frozenset(c.name for c, there in zip(self.table.columns, self.columns, strict=True) if there.type_name == TEXT)

    @property
    def takes_whole_rows(self) -> bool:
        """Returns whether a statement may set all columns that the source sends, of which there are some."""
        return 0 < len(self.written) == len(self.table.columns)

    @property
    def has_exact_key(self) -> bool:
        """Returns whether different keys of the source are different keys here."""
        return self.exact.issuperset(self.table.key)


@lru_cache(4096)  # composing it takes as long as a COPY of a few rows
def _copy_statement(place: tuple[str, str], columns: tuple[str, ...]) -> bytes:
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*place), names).as_bytes()


def creation_statements(table: Table) -> list[str]:
    """Returns statements that create the table with its keys, in a database that has its schema and types."""
    types = [column.type_name for column in table.columns]
    return [table_definition(table, types).as_string(), *(key.definition().as_string() for key in keys_of(table))]


def missing_error(table: Table) -> TerminalError:
    """Returns the error for a missing table that the worker must not create."""
    return TerminalError(
        f"table '{table.qualified_name}' does not exist at the target",
        "create it, or set target-sync-schema: true to have it created",
        statements=creation_statements(table),
    )


def target_table(
    table: Table, entry: CatalogEntry, place: tuple[str, str], known_numbers: Mapping[str, int], *, leaves_out: bool = False
) -> TargetTable:
    """Returns ``entry``, the target's relation ``place``, as the target of ``table``. ``known_numbers`` are the numbers
    of the columns there, by all names that they had at the source. ``leaves_out``: missing columns are left out, unless
    they are of the key. Raises TerminalError when it cannot take the source's rows."""
    if entry.kind not in ("r", "p"):
        raise TerminalError(f"'{table.qualified_name}' at the target is not a table", "rename it, or route the table elsewhere")
    columns = _columns_here(table, entry, known_numbers)
    if leaves_out:
        columns = _with_gaps(table, columns)
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
        not_null=frozenset(i for i, column in enumerate(at_target) if column.holds_no_null),
        is_partitioned=entry.kind == "p",
        has_rules=entry.has_rules,
    )


def _columns_here(table: Table, entry: CatalogEntry, known_numbers: Mapping[str, int]) -> dict[str, TargetColumn]:
    """Returns the target of each of the source's columns, by its name: the column of that name, or else the one that
    had that name."""
    by_name = {column.name: column for column in entry.columns}
    by_number = {column.number: column for column in entry.columns}
    own = {column.name for column in table.columns}
    found = {name: by_name[name] for name in own if name in by_name}
    for name in own - found.keys():
        renamed = by_number.get(known_numbers.get(name, 0))
        if renamed is not None and renamed.name not in own:
            found[name] = renamed
    return found


def _with_gaps(table: Table, found: Mapping[str, TargetColumn]) -> dict[str, TargetColumn]:
    missing = [c.name for i, c in enumerate(table.columns) if c.name not in found and i not in table.key]
    if missing:
        _log.warning("columns that the target does not have are left out", table=table.qualified_name, columns=", ".join(missing))
    return {**found, **dict.fromkeys(missing, LEFT_OUT)}


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
                statements=[drop.as_string()],
            )


def _earlier_columns(table: Table, entry: CatalogEntry, known_numbers: Mapping[str, int]) -> list[str]:
    """Returns columns at the target that the source had, and has no longer under that name."""
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
        " is lost. If the source's column has a DEFAULT, add it to the statement",
        statements=[] if renames else [add],
    )


def has_unique_key(target: TargetTable, entry: CatalogEntry) -> bool:
    """Returns whether ON CONFLICT can name the key that ``target.table`` has; True when it has none."""
    return not target.table.key or set(_key_names(target)) in entry.unique_keys


def _key_names(target: TargetTable) -> list[str]:
    return [target.columns[i].name for i in target.table.key]


def key_error(target: TargetTable, partition_columns: Sequence[str]) -> TerminalError:
    """Returns the error for a table without a unique index on its key."""
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
        statements=[create.as_string()],
    )


def check_row_security(connection: Connection, table: Table, entry: CatalogEntry) -> None:
    """Raises TerminalError when policies of the target's table hold for this role."""
    if not entry.has_row_security:
        return
    role = connection.info.user
    statement = f"ALTER ROLE {sql.Identifier(role).as_string()} BYPASSRLS"
    raise TerminalError(
        f"row security of table '{table.qualified_name}' at the target may hide rows from role {role!r}: their changes would be"
        " lost",
        f"run there: {statement}; or have the role be the table's owner, or a member of it, without FORCE ROW LEVEL SECURITY",
        statements=[statement],
    )


def identity_error(target: TargetTable) -> TerminalError:
    """Returns the error for a batch that changes a value in one of ``target.fixed``."""
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


def empty_table(connection: Connection, target: TargetTable) -> None:
    """Raises PieceError."""
    try:
        connection.execute(emptying_statement(connection, target.oid, target.place))
    except psycopg.Error as error:
        raise PieceError(target.table, error) from None


def emptying_statement(connection: Connection, oid: int, place: tuple[str, str]) -> sql.Composed:
    """Partitions belong to the table, other children do not. TRUNCATE is refused for a table that foreign keys of others point
    to, even where they are disabled; its rows are deleted."""
    shape = connection.execute(_SHAPE, [oid]).fetchone()
    is_partitioned, is_referenced = shape or (False, False)
    only = sql.SQL("" if is_partitioned else "ONLY ")
    return sql.SQL("DELETE FROM {}{}" if is_referenced else "TRUNCATE TABLE {}{}").format(only, sql.Identifier(*place))
