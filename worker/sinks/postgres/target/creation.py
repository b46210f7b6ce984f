"""What a missing target table is made of, from the descriptor of the source's: columns, types, NOT NULL; and its keys.

Keys have statements of their own, for a table that is filled by a copy gets them when it is full (``own.pending_keys``).
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgsluice.shared import telemetry
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.sinks.postgres.target.connection import Connection

_log = telemetry.logger(__name__)

TEXT = "text"


def create_table(connection: Connection, table: Table) -> None:
    """Creates ``table`` without a key, and its schema when that is missing, in the connection's transaction.

    A type the target does not have becomes text. Identity and generated columns become plain ones: their values come from
    the source.
    """
    if connection.execute("SELECT to_regnamespace(quote_ident(%s))", [table.schema]).fetchone() == (None,):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(table.schema)))
    types = [_known_type(connection, table, column) for column in table.columns]
    connection.execute(table_definition(table, types))
    _log.info("created a table at the target", table=table.qualified_name, columns=len(table.columns))


def table_definition(table: Table, types: list[str]) -> sql.Composed:
    """CREATE TABLE with ``types`` as the columns' types, which must be types: they cannot be quoted."""
    parts: list[sql.Composable] = []
    for column, type_name in zip(table.columns, types, strict=True):
        not_null = sql.SQL(" NOT NULL" if column.not_null else "")
        parts.append(sql.SQL("{} {}{}").format(sql.Identifier(column.name), sql.SQL(type_name), not_null))
    return sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table.schema, table.name), sql.SQL(", ").join(parts))


def _known_type(connection: Connection, table: Table, column: Column) -> str:
    """``column.type_name`` when the target reads it as a type, which also makes it safe to put into a statement."""
    try:
        with connection.transaction():
            known = connection.execute("SELECT to_regtype(%s) IS NOT NULL", [column.type_name]).fetchone() == (True,)
    except psycopg.errors.SyntaxError:
        known = False
    if known:
        return column.type_name
    _log.warning(
        "the target does not have a column's type; the column becomes text",
        table=table.qualified_name,
        column=column.name,
        type=column.type_name,
    )
    return TEXT


@dataclass(frozen=True, slots=True)
class Key:
    """A primary key, or a unique index on what identifies a row otherwise."""

    schema: str
    table: str
    columns: tuple[str, ...]
    is_primary: bool

    def definition(self) -> sql.Composed:
        """The statement that builds it."""
        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        statement = "ALTER TABLE {} ADD PRIMARY KEY ({})" if self.is_primary else "CREATE UNIQUE INDEX ON {} ({})"
        return sql.SQL(statement).format(sql.Identifier(self.schema, self.table), names)


def keys_of(table: Table) -> list[Key]:
    """The primary key, and the key that replication goes by when that is another."""
    positions = [(c.primary_key_position, i) for i, c in enumerate(table.columns) if c.primary_key_position is not None]
    primary_key = tuple(i for _, i in sorted(positions))
    keys = [_key(table, primary_key, is_primary=True)] if primary_key else []
    if table.key and set(table.key) != set(primary_key):
        keys.append(_key(table, table.key, is_primary=False))
    return keys


def _key(table: Table, columns: tuple[int, ...], *, is_primary: bool) -> Key:
    return Key(table.schema, table.name, tuple(table.columns[i].name for i in columns), is_primary)
