"""Applies one definition of the source to the target's tables, inside the caller's transaction.

Which tables these are is remembered (``own.known_tables``): one whose rows never came here has none. Whatever the target refuses
stops the worker, with the statement that was tried; a lock that somebody holds is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import psycopg
from psycopg import sql

from pgsluice.shared import telemetry
from pgsluice.shared.definitions.difference import Difference, TableRenamed, differences_of
from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError
from pgsluice.shared.wire.definition import (
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.worker.definitions.policy import Action, Kind, Policies, kind_of
from pgsluice.worker.sinks.postgres.definitions.alteration_statements import (
    Statement,
    TableHere,
    enum_statements,
    renaming_type,
    statements,
)
from pgsluice.worker.sinks.postgres.definitions.refit import refitting
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTable, KnownTables
from pgsluice.worker.sinks.postgres.own.own_tables import DDL_LOCK
from pgsluice.worker.sinks.postgres.target.catalog import CatalogEntry, TargetColumn, find_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import is_transient
from pgsluice.worker.sinks.postgres.target.type_names import known_type

_log = telemetry.logger(__name__)

_NOT_OURS = {Action.IGNORE, Action.STOP, Action.RECOPY}
"""What a person did, or a copy does."""

_ENUM = "e"
_PRIMARY_KEY = """
SELECT c.conname, ARRAY(SELECT a.attname FROM unnest(c.conkey) WITH ORDINALITY AS k (attnum, position)
                        JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum ORDER BY k.position)
FROM pg_constraint c WHERE c.contype = 'p' AND c.conrelid = %s
"""
_TYPE = "SELECT t.typtype FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname = %s AND t.typname = %s"


@dataclass(frozen=True, slots=True)
class Alteration:
    connection: Connection
    known_tables: KnownTables
    policies: Policies

    def apply(self, definition: PublishedDefinition) -> None:
        """What a person is to look at was looked at before it came here, and is taken as done. Raises TerminalError for what the
        target refuses; TransientError for a lock."""
        self.connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        event, was = definition.event, definition.previous
        match event:
            case TableDefined(table=table) | TablePublished(table=table):
                # one kind alone: a table follows a table and a type a type; one kind of difference changes a name
                if isinstance(was, TableDefinition):
                    self._alter_table(was, table, differences_of(definition))
            case TypeDefined():
                if isinstance(was, TypeDefined) and self.policies.action(Kind.ENUM, None) is Action.APPLY:
                    self._alter_type(was, event)
            case TableGone():
                self._drop_table(event)
            case TableUnpublished(schema=schema, name=name):
                _log.info("a table of the source is not published any more; its rows stay", table=f"{schema}.{name}")
            case TableRewritten() | DefinitionUnknown():
                pass  # tells of rows, or of nothing
            case unreachable:
                assert_never(unreachable)

    def _alter_table(self, was: TableDefinition, now: TableDefinition, found: Sequence[Difference]) -> None:
        if found:
            for known in self.known_tables.of_table(self.connection, now.oid):
                self._alter_place(known, was, now, found)

    def _drop_table(self, gone: TableGone) -> None:
        action = self.policies.action(Kind.DROP_TABLE, (gone.schema, gone.name))
        for known in self.known_tables.of_table(self.connection, gone.oid):
            if action is Action.DROP:
                self._execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(*known.place)), ".".join(known.place))
            else:
                _log.info("the source dropped a table; the target keeps it", table=".".join(known.place))

    def _alter_place(self, known: KnownTable, was: TableDefinition, now: TableDefinition, found: Iterable[Difference]) -> None:
        """What is not altered stays known by what it is called here, but for a table that was renamed: its rows would go to
        another of that name."""
        place, source = known.place, (now.schema, now.name)
        for difference in found:
            here = self._look(place, known, was, now)
            if here is None:
                return
            action = self.policies.action(kind_of(difference), (was.schema, was.name))
            if isinstance(difference, TableRenamed):
                source = known.source if action is Action.IGNORE else source
            if action in _NOT_OURS:
                continue
            for statement in statements(difference, here, action):
                self._execute(statement, ".".join(place))
            if isinstance(difference, TableRenamed) and place == difference.was:
                place = difference.now
        entry = find_table(self.connection, *place)
        if entry is not None:
            self._remember(known, replace(known, place=place, source=source, target_oid=entry.oid), entry, was, now)

    def _look(self, place: tuple[str, str], known: KnownTable, was: TableDefinition, now: TableDefinition) -> TableHere | None:
        """The target's table as it is after the statements so far; None when it is not there."""
        entry = find_table(self.connection, *place)
        if entry is None:
            return None
        columns = _columns_here(entry, known, was, now)
        constraint = self.connection.execute(_PRIMARY_KEY, [entry.oid]).fetchone() or ("", ())
        has_rows = self.connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(sql.Identifier(*place))).rowcount > 0
        return TableHere(
            place=place,
            names={number: column.name for number, column in columns.items()},
            others={column.name for column in entry.columns} - {column.name for column in columns.values()},
            types={c.number: known_type(self.connection, ".".join(place), c.name, c.type_name) for c in now.columns},
            is_empty=not has_rows,
            key_constraint=constraint[0],
            key_columns=tuple(constraint[1]),
            unique_keys=entry.unique_keys,
            source_columns={column.name: column for column in was.columns},
        )

    def _remember(
        self, known: KnownTable, moved: KnownTable, entry: CatalogEntry, was: TableDefinition, now: TableDefinition
    ) -> None:
        here = _columns_here(entry, known, was, now)
        numbers = {c.name: here[c.number].number for c in now.columns if c.number in here}
        types = {column.name: column.type_name for column in now.columns}
        self.known_tables.replace(self.connection, known, replace(moved, columns=numbers, types=types))

    def _alter_type(self, was: TypeDefined, now: TypeDefined) -> None:
        """The type of that name, if the target has one. Where it has text instead, rows bring the labels."""
        place, later = (was.schema, was.name), (now.schema, now.name)
        kind = self._type_kind(place)
        if kind is None:
            return
        if place != later and self._type_kind(later) is None:
            for statement in renaming_type(place, later):
                self._execute(statement, ".".join(place))
            place = later
        if kind == _ENUM:
            for statement in enum_statements(*place, was.labels, now.labels):
                self._execute(statement, ".".join(place))

    def _type_kind(self, place: tuple[str, str]) -> str | None:
        """``pg_type.typtype``; None when the target has no type there."""
        row = self.connection.execute(_TYPE, place).fetchone()
        return None if row is None else str(row[0])

    def refit(self, table: Table) -> None:
        """Makes the target's table fit for rows of ``table`` that are copied again; it loses its rows where it has to be altered.
        Raises as ``apply``."""
        self.connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        for statement in refitting(self.connection, self.known_tables, self.policies, table):
            self._execute(statement, table.qualified_name)

    def _execute(self, statement: Statement, name: str) -> None:
        """Runs one statement, whatever its text holds: the extended protocol takes no second one."""
        try:
            self.connection.execute(statement, binary=True)
        except psycopg.Error as error:
            raise _refused(error, statement, name) from None
        _log.info("altered the target as the source was", name=name)


def _columns_here(entry: CatalogEntry, known: KnownTable, was: TableDefinition, now: TableDefinition) -> dict[int, TargetColumn]:
    """The target's columns, by the numbers of the source's: those that rows went to, or else those of their names."""
    by_number = {column.number: column for column in entry.columns}
    by_name = {column.name: column for column in entry.columns}
    found: dict[int, TargetColumn] = {}
    for column in (*now.columns, *was.columns):  # what was there may be remembered by its earlier name
        remembered = by_number.get(known.columns.get(column.name, 0)) if column in was.columns else None
        here = remembered or by_name.get(column.name)
        if here is not None:
            found[column.number] = here
    return found


def _refused(error: psycopg.Error, statement: Statement, name: str) -> PgsluiceError:
    tried = statement.as_string()
    if is_transient(error):
        fact = f"a lock on '{name}' at the target is held by somebody else"
        return TransientError(fact, f"it is tried again: {tried}", Cause.LOCK)
    what = f"the target refused what the source did to '{name}' ({type(error).__name__}, SQLSTATE {error.sqlstate}): {tried}"
    return TerminalError(
        what, "make room for it there (a view or a rule may need the column, or a right may be lacking), then start again"
    )
