"""Brings a table of the target to the definition under which its rows are about to be copied again.

What the source did to the table before that copy is not told in the changes that are applied: the copy holds it. So the target's
table, which is emptied for the copy, is compared with the rows' own descriptor instead. A column that the source gave another
type is given it too where the target had the type that the source had before; where it has one of its own it keeps that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.definitions.policy import Action, Kind, Policies
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTable, KnownTables
from pgsluice.worker.sinks.postgres.target.catalog import CatalogEntry, TargetColumn, find_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.table import emptying_statement, known_type

Statement = sql.Composed

_TYPES = "SELECT attnum, format_type(atttypid, nullif(atttypmod, -1)) FROM pg_attribute WHERE attrelid = %s AND attnum > 0"


def refitting(connection: Connection, known_tables: KnownTables, policies: Policies, table: Table) -> list[Statement]:
    """What empties the target's table and makes it fit for rows of ``table``. None where it fits, is not there, or never had rows
    of that table. Raises TerminalError where a person is to look at it."""
    for known in known_tables.of_table(connection, table.oid):
        entry = find_table(connection, *known.place)
        if known.place == (table.schema, table.name) and entry is not None and entry.oid == known.target_oid:
            types: dict[int, str] = dict(connection.execute(_TYPES, [entry.oid]).fetchall())
            found = list(_Refit(connection, policies, table, known, entry, types).statements())
            return [emptying_statement(connection, entry.oid, known.place), *found] if found else []
    return []


@dataclass(frozen=True, slots=True)
class _Refit:
    """``types`` are those of the target's columns, by number."""

    connection: Connection
    policies: Policies
    table: Table
    known: KnownTable
    entry: CatalogEntry
    types: Mapping[int, str]

    def statements(self) -> Iterator[Statement]:
        here = {column.name: self._here(column) for column in self.table.columns}
        taken = {column.number for column in here.values() if column is not None}
        for name in self.known.types.keys() - here.keys():
            gone = self._numbered(self.known.columns.get(name, 0))
            if gone is not None and gone.number not in taken:
                yield from self._dropping(gone)
        for column in self.table.columns:
            found = here[column.name]
            if found is None:
                yield from self._adding(column)
            else:
                yield from self._altering(column, found)

    def _here(self, column: Column) -> TargetColumn | None:
        by_name = {each.name: each for each in self.entry.columns}
        return self._numbered(self.known.columns.get(column.name, 0)) or by_name.get(column.name)

    def _numbered(self, number: int) -> TargetColumn | None:
        return next((each for each in self.entry.columns if each.number == number), None)

    def _dropping(self, gone: TargetColumn) -> Iterator[Statement]:
        action = self._action(Kind.DROP_COLUMN)
        yield self._alter("DROP COLUMN {}" if action is Action.APPLY else "ALTER COLUMN {} DROP NOT NULL", gone.name)

    def _adding(self, column: Column) -> Iterator[Statement]:
        if self._action(Kind.ADD_COLUMN) is Action.APPLY:
            not_null = sql.SQL(" NOT NULL" if column.not_null else "")
            yield self._alter("ADD COLUMN {} ", column.name) + self._type(column) + not_null

    def _altering(self, column: Column, here: TargetColumn) -> Iterator[Statement]:
        before, now = self.known.types.get(column.name), column.type_name
        is_followed = before is not None and before != now and self.types.get(here.number) == before
        if is_followed and self._action(Kind.ALTER_TYPE) is Action.APPLY:
            kind = self._type(column)
            yield self._alter("ALTER COLUMN {} TYPE ", here.name) + kind + sql.SQL(" USING NULL::") + kind
        if here.not_null and not column.not_null and self._action(Kind.NOT_NULL) is Action.APPLY:
            yield self._alter("ALTER COLUMN {} DROP NOT NULL", here.name)

    def _action(self, kind: Kind) -> Action:
        action = self.policies.action(kind, self.table.source_name)
        if action is Action.STOP:
            name = ".".join(self.table.source_name)
            raise TerminalError(
                f"table '{name}' is copied again because the source altered it ({kind}), and ddl or ddl-policy says that a person"
                " is to look at it",
                f"alter the target's table as it is to be, or start again with ddl-policy '{name} {kind}' set to something else",
            )
        return action

    def _type(self, column: Column) -> sql.SQL:
        return sql.SQL(known_type(self.connection, self.table.qualified_name, column.name, column.type_name))

    def _alter(self, action: str, name: str) -> Statement:
        identifier = sql.Identifier(*self.known.place)
        return sql.SQL("ALTER TABLE {} ").format(identifier) + sql.SQL(action).format(sql.Identifier(name))
