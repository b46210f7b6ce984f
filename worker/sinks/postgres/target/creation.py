"""Makes a missing target table from the descriptor: columns, types, NOT NULL. Its keys are made apart (``keys``)."""

from __future__ import annotations

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
