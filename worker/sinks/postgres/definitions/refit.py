"""Brings a table of the target to the definition under which its rows are about to be copied again.

The applied changes do not contain earlier alterations of the table: the copy includes them. So the target's table,
which is emptied for the copy, is compared with the rows' own descriptor instead. A column that the source gave another
type is given it too where the target had the type that the source had before; where it has another one it keeps that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.definitions.policy import DefinitionAction, DefinitionKind, Policies
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTable, KnownTables
from pgsluice.worker.sinks.postgres.target.catalog import CatalogEntry, TargetColumn, find_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.table import emptying_statement, keys_of
from pgsluice.worker.sinks.postgres.target.type_names import TEXT, known_type, type_here

Statement = sql.Composed

_BETWEEN = "pgsluice_between_names"

_PRIMARY_KEY = "SELECT conkey FROM pg_constraint WHERE contype = 'p' AND conrelid = %s"
_TYPES = "SELECT attnum, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s AND attnum > 0"


def refitting(connection: Connection, known_tables: KnownTables, policies: Policies, table: Table) -> list[Statement]:
    """Returns statements that empty the target's table and make it fit for rows of ``table``. Empty if it fits, does
    not exist, or never had rows of that table, nor of one that had its name before. Raises TerminalError where an
    operator must decide."""
    place = (table.schema, table.name)
    entry = find_table(connection, *place)
    if entry is None:
        return []
    own = [each for each in known_tables.of_table(connection, table.oid) if (each.place, each.target_oid) == (place, entry.oid)]
    known = own[0] if own else known_tables.predecessor(connection, table, entry.oid)
    if known is None:
        return []
    types: dict[int, str] = dict(connection.execute(_TYPES, [entry.oid]).fetchall())
    primary_key = connection.execute(_PRIMARY_KEY, [entry.oid]).fetchone()
    refit = _Refit(connection, policies, table, known, entry, types, primary_key[0] if primary_key else [])
    found = list(refit.statements())
    numbers = {name: here.number for name, here in refit.columns().items()}
    texts = dict.fromkeys(refit.made_as_text, TEXT)
    if texts or any(known.columns.get(name) != number for name, number in numbers.items()):
        noted = replace(known, columns={**known.columns, **numbers}, types={**known.types, **texts})
        known_tables.replace(connection, known, noted)
    return [emptying_statement(connection, entry.oid, place), *found] if found else []


@dataclass(frozen=True)
class _Refit:
    """``types`` are the target's columns' types, by number; ``primary_key`` are numbers too, empty without one.
    ``made_as_text`` are the columns that the statements so far add as text because their types are missing."""

    connection: Connection
    policies: Policies
    table: Table
    known: KnownTable
    entry: CatalogEntry
    types: Mapping[int, str]
    primary_key: Sequence[int]
    made_as_text: list[str] = field(default_factory=list)

    def statements(self) -> Iterator[Statement]:
        here = self.columns()
        taken = {column.number for column in here.values()}
        known = [self._numbered(self.known.columns.get(name, 0)) for name in self.known.types]
        gone = [column for column in known if column is not None and column.number not in taken]
        for column_gone in gone:
            yield from self._dropping(column_gone)
        yield from self._renaming(here)
        for column in self.table.columns:
            if column.name not in here:
                yield from self._adding(column)
            else:
                yield from self._altering(column, here[column.name])
        yield from self._keying({name: found.name for name, found in here.items()}, gone)

    def columns(self) -> dict[str, TargetColumn]:
        """Returns the target's columns by the current names of the source: the columns that rows went to, or else the
        ones of those names."""
        by_name = {each.name: each for each in self.entry.columns}
        pairs = [
            (column.name, self._numbered(self.known.columns.get(self._name_before(column), 0))) for column in self.table.columns
        ]
        found = {name: here for name, here in pairs if here is not None}
        taken = {here.number for here in found.values()}
        for column in self.table.columns:
            here = by_name.get(column.name)
            if here is not None and here.number not in taken:
                found.setdefault(column.name, here)
        return found

    @cached_property
    def _names_before(self) -> dict[int, str]:
        """Earlier names by the source's numbers, which stay through renames. A table that was created again has other
        numbers."""
        numbers = self.known.source_numbers if self.known.oid == self.table.oid else {}
        return {number: name for name, number in numbers.items() if number}

    def _name_before(self, column: Column) -> str:
        """Returns "" for a column that is new."""
        if not self._names_before or not column.number:
            return column.name
        return self._names_before.get(column.number, "")

    def _renaming(self, here: dict[str, TargetColumn]) -> Iterator[Statement]:
        """Renames columns that have the source's earlier names at the target, in an order in which each new name is
        free. Where columns exchange their names, one has a temporary name meanwhile. Gives the columns in ``here``
        their new names."""
        before = {column.name: self._name_before(column) for column in self.table.columns}
        wanted = {found.name: name for name, found in here.items() if found.name == before[name] != name}
        if not wanted or self._action(DefinitionKind.RENAME_COLUMN) is not DefinitionAction.APPLY:
            return
        here |= {name: replace(here[name], name=name) for name in wanted.values()}
        while wanted:
            free = [old for old, new in wanted.items() if new not in wanted]
            old = free[0] if free else next(iter(wanted))
            new = wanted.pop(old)
            if not free:
                wanted[_BETWEEN], new = new, _BETWEEN
            yield self._alter("RENAME COLUMN {} TO {}", old, new)

    def _numbered(self, number: int) -> TargetColumn | None:
        return next((each for each in self.entry.columns if each.number == number), None)

    def _dropping(self, gone: TargetColumn) -> Iterator[Statement]:
        action = self._action(DefinitionKind.DROP_COLUMN)
        yield self._alter("DROP COLUMN {}" if action is DefinitionAction.APPLY else "ALTER COLUMN {} DROP NOT NULL", gone.name)

    def _adding(self, column: Column) -> Iterator[Statement]:
        if self._action(DefinitionKind.ADD_COLUMN) is DefinitionAction.APPLY:
            kind = known_type(self.connection, self.table.qualified_name, column.name, column.type_name)
            if kind == TEXT:
                self.made_as_text.append(column.name)
            yield self._alter("ADD COLUMN {} ", column.name) + sql.SQL(kind + (" NOT NULL" if column.not_null else ""))

    def _altering(self, column: Column, here: TargetColumn) -> Iterator[Statement]:
        before, now = self.known.types.get(self._name_before(column)), column.type_name
        is_followed = before is not None and before != now and self.types.get(here.number) == before
        if is_followed and self._action(DefinitionKind.ALTER_TYPE) is DefinitionAction.APPLY:
            kind = type_here(self.connection, now)
            if kind is None and before != TEXT:
                raise TerminalError(
                    f"the source altered column '{column.name}' of '{self.table.qualified_name}' from type {before} to {now},"
                    " which the target does not have",
                    "create the type at the target, in the same schema; then start again, nothing is lost",
                )
            if kind is not None:
                yield self._alter("ALTER COLUMN {} TYPE ", here.name) + sql.SQL(f"{kind} USING NULL::{kind}")
        is_relaxed = here.not_null and not column.not_null and here.number not in self.primary_key
        if is_relaxed and self._action(DefinitionKind.NOT_NULL) is DefinitionAction.APPLY:
            yield self._alter("ALTER COLUMN {} DROP NOT NULL", here.name)

    def _keying(self, names: Mapping[str, str], gone: Sequence[TargetColumn]) -> Iterator[Statement]:
        """A table that has no key at all gets one when it is full (``own.pending_keys``)."""
        if not self.entry.unique_keys:
            return
        dropped = gone if self._action(DefinitionKind.DROP_COLUMN) is DefinitionAction.APPLY else []
        has_primary_key = bool(self.primary_key) and not any(column.number in self.primary_key for column in dropped)
        for key in keys_of(self.table):
            columns = tuple(names.get(name, name) for name in key.columns)
            if set(columns) not in self.entry.unique_keys and self._action(DefinitionKind.KEY) is DefinitionAction.APPLY:
                yield replace(key, columns=columns, is_primary=key.is_primary and not has_primary_key).definition()

    def _action(self, kind: DefinitionKind) -> DefinitionAction:
        action = self.policies.action(kind, self.table.source_name)
        if action is DefinitionAction.STOP:
            name = ".".join(self.table.source_name)
            raise TerminalError(
                f"table '{name}' is copied again because the source altered it ({kind}), and ddl or ddl-policy wants an operator"
                " to decide",
                f"alter the target's table accordingly, or start again with ddl-policy '{name} {kind}' set to something else",
            )
        return action

    def _alter(self, action: str, *names: str) -> Statement:
        identifier = sql.Identifier(*self.known.place)
        return sql.SQL("ALTER TABLE {} ").format(identifier) + sql.SQL(action).format(*map(sql.Identifier, names))
