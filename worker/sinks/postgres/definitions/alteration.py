"""Applies one definition of the source to the target's tables, inside the caller's transaction.

These tables are remembered (``own.known_tables``): one whose rows never came here has none. A refused statement stops
the worker, and is named in the error; it waits for locks of other sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import psycopg
from psycopg import sql

from pgsluice.shared import telemetry
from pgsluice.shared.definitions.difference import (
    ColumnAdded,
    Difference,
    TableRenamed,
    TypeAltered,
    alters_values,
    differences_of,
)
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
from pgsluice.worker.definitions.policy import DefinitionAction, DefinitionKind, Policies, kind_of, kinds_of
from pgsluice.worker.definitions.refusal import RefusedDefinitionError
from pgsluice.worker.sinks.postgres.definitions.alteration_statements import (
    ColumnHere,
    TableHere,
    statements,
)
from pgsluice.worker.sinks.postgres.definitions.refit import refitting
from pgsluice.worker.sinks.postgres.definitions.type_alteration import (
    altering_values,
    labelling,
    renaming_by_column,
    renaming_of,
)
from pgsluice.worker.sinks.postgres.definitions.type_statements import Statement
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTable, KnownTables
from pgsluice.worker.sinks.postgres.own.own_tables import DDL_LOCK
from pgsluice.worker.sinks.postgres.target.catalog import unique_keys
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import is_transient
from pgsluice.worker.sinks.postgres.target.type_names import TEXT, known_type, type_here

_log = telemetry.logger(__name__)

_NOT_OURS = {DefinitionAction.IGNORE, DefinitionAction.STOP, DefinitionAction.RECOPY}
"""Actions that an operator carries out, or a copy."""

_LOOK = """
SELECT c.oid, c.relkind = 'p',
       (SELECT jsonb_agg(jsonb_build_array(a.attname, a.attnum, a.attnotnull, a.attgenerated <> '',
                                           format_type(a.atttypid, a.atttypmod))) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       k.conname, ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS k (attnum, position)
                        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum ORDER BY k.position)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_constraint k ON k.contype = 'p' AND k.conrelid = c.oid
 WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT c.oid::bigint, a.attname::text, a.attnum::int, format_type(a.atttypid, a.atttypmod)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE n.nspname = %s AND c.relname = %s
"""


@dataclass(frozen=True, slots=True)
class Alteration:
    connection: Connection
    known_tables: KnownTables
    policies: Policies

    def apply(self, definition: PublishedDefinition, *, is_accepted: bool = False) -> None:
        """Alters the target by ``definition``. Parts that a policy leaves to an operator were judged before, and are
        assumed to be done; with ``is_accepted`` an operator has done all of it. Raises RefusedDefinitionError for a
        refused statement; TransientError for a lock."""
        event = definition.event
        # a single kind: other definitions that alter nothing are not logged
        if isinstance(event, TableUnpublished):
            _log.info("a table of the source is not published any more; its rows stay", table=f"{event.schema}.{event.name}")
        if not kinds_of(definition):
            return
        self.connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        try:
            self._apply(definition, is_accepted=is_accepted)
        except TerminalError as error:
            raise RefusedDefinitionError(error.fact, error.remedy, definition) from None

    def _apply(self, definition: PublishedDefinition, *, is_accepted: bool) -> None:
        event, was = definition.event, definition.previous
        match event:
            case TableDefined(table=table) | TablePublished(table=table):
                # a single kind: a table follows a table and a type a type; one kind of difference changes a name
                if isinstance(was, TableDefinition):
                    self._alter_table(was, table, differences_of(definition), is_accepted=is_accepted)
            case TypeDefined():
                if isinstance(was, TypeDefined) and not is_accepted:
                    self._alter_type(was, event)
            case TableGone():
                self._drop_table(event, is_accepted=is_accepted)
            case TableUnpublished() | TableRewritten() | DefinitionUnknown():
                pass  # about rows, or about nothing
            case unreachable:
                assert_never(unreachable)

    def _alter_table(self, was: TableDefinition, now: TableDefinition, found: Sequence[Difference], *, is_accepted: bool) -> None:
        if not found:
            return
        if not is_accepted:
            for difference in found:
                # a single kind: other facts about a type come in the type's own message
                if isinstance(difference, TypeAltered) and difference.is_same and self._is_applied(DefinitionKind.ENUM):
                    self._execute_all(renaming_by_column(self.connection, difference.was, difference.now), now.name)
        for known in self.known_tables.of_table(self.connection, now.oid):
            if self.known_tables.is_succeeded(self.connection, known):
                _log.info("ignoring the schema change of a table whose name another table has now", table=".".join(known.place))
            else:
                self._alter_place(known, was, now, found, is_accepted=is_accepted)

    def _drop_table(self, gone: TableGone, *, is_accepted: bool) -> None:
        action = self.policies.action(DefinitionKind.DROP_TABLE, (gone.schema, gone.name))
        for known in self.known_tables.of_table(self.connection, gone.oid):
            place = ".".join(known.place)
            if action is not DefinitionAction.DROP or is_accepted:
                _log.info("the source dropped a table; the target keeps it", table=place)
                continue
            self._lock(known)
            if sharer := self.known_tables.sharer(self.connection, known):
                _log.warning(
                    "the source dropped a table; the target keeps it, as it holds rows of another", table=place, other=sharer
                )
                self.known_tables.forget_place(self.connection, known)
            else:
                self._execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(*known.place)), place)

    def _lock(self, known: KnownTable) -> None:
        """Waits for sessions that write to the target's table: another worker notes its rows there when it commits them."""
        if self.connection.execute(_COLUMNS, known.place).rowcount:
            lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(*known.place))
            self._run(lock, ".".join(known.place))

    def _alter_place(
        self,
        known: KnownTable,
        was: TableDefinition,
        now: TableDefinition,
        found: Iterable[Difference],
        *,
        is_accepted: bool,
    ) -> None:
        """Alters one table. Unaltered columns stay known by their names here; so does a table that was not renamed: its
        rows would go to another of that name."""
        place, source = known.place, (now.schema, now.name)
        made_as_text: set[int] = set()
        for difference in found:
            action = self.policies.action(kind_of(difference), (was.schema, was.name))
            if isinstance(difference, TableRenamed):
                source = known.source if action is DefinitionAction.IGNORE and not is_accepted else source
            if action in _NOT_OURS or is_accepted:
                continue
            here = self._look(place, known, was, now, difference)
            if here is None:
                return
            self._execute_all(statements(difference, here, action), ".".join(place))
            made_as_text |= {number for number, kind in here.types.items() if kind == TEXT and number not in here.columns}
            if isinstance(difference, TableRenamed) and place == difference.was:
                place = difference.now
        found_now = self.connection.execute(_COLUMNS, place).fetchall()
        if found_now:
            by_name = {name: number for _, name, number, _ in found_now if name is not None}
            here_now = _numbers_here(by_name, known, was, now)
            texts = {number for _, _, number, kind in found_now if kind == TEXT}
            as_text = {each for each in made_as_text | known.made_as_text(was) if here_now.get(each) in texts}
            self.known_tables.replace(
                self.connection,
                known,
                replace(
                    known,
                    place=place,
                    source=source,
                    target_oid=found_now[0][0],
                    columns={c.name: here_now[c.number] for c in now.columns if c.number in here_now},
                    types={c.name: TEXT if c.number in as_text else c.type_name for c in now.columns},
                    source_numbers={c.name: c.number for c in now.columns},
                ),
            )

    def _look(
        self, place: tuple[str, str], known: KnownTable, was: TableDefinition, now: TableDefinition, difference: Difference
    ) -> TableHere | None:
        """Returns the target's table as it is after the statements so far; None when it is not there."""
        found = self.connection.execute(_LOOK, place).fetchone()
        if found is None:
            return None
        oid, is_partitioned, attributes, constraint, key_columns = found
        there = {number: ColumnHere(name, not_null, is_generated) for name, number, not_null, is_generated, _ in attributes or ()}
        numbers = _numbers_here({column.name: number for number, column in there.items()}, known, was, now)
        columns = {number: there[here] for number, here in numbers.items()}
        kinds = {number: kind for _, number, _, _, kind in attributes or ()}
        query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(*place))
        [has_rows] = self.connection.execute(query).fetchone() or (True,)
        return TableHere(
            place=place,
            columns=columns,
            current={number: kinds[here] for number, here in numbers.items()},
            types=self._types(difference, columns, ".".join(place)),
            is_partitioned=is_partitioned,
            is_empty=not has_rows,
            key_constraint=constraint or "",
            key_columns=tuple(key_columns),
            unique_keys=unique_keys(self.connection, [oid]).get(oid, []),
            source_columns={column.name: column for column in was.columns},
        )

    def _types(self, difference: Difference, columns: Mapping[int, ColumnHere], table: str) -> dict[int, str | None]:
        """Returns the target's type of the column that ``difference`` gives a type. A column that the target does not
        have yet becomes text if it lacks the type."""
        # a single kind: other differences give no column a type
        if isinstance(difference, ColumnAdded) and difference.column.number not in columns:
            column = difference.column
            return {column.number: known_type(self.connection, table, column.name, column.type_name)}
        if isinstance(difference, ColumnAdded | TypeAltered):
            column = difference.column if isinstance(difference, ColumnAdded) else difference.now
            return {column.number: type_here(self.connection, column.type_name)}
        return {}

    def _alter_type(self, was: TypeDefined, now: TypeDefined) -> None:
        """Alters the type of that name, if the target has one. Where it has text instead, rows bring the labels."""
        name = f"{was.schema}.{was.name}"
        if self._is_applied(DefinitionKind.ENUM):
            self._execute_all(renaming_of(self.connection, (was.schema, was.name), (now.schema, now.name)), name)
            self._execute_all(labelling(self.connection, was, now), name)
        if alters_values(was, now) and self._is_applied(DefinitionKind.TYPE):
            self._execute_all(altering_values(self.connection, was, now), name)

    def _is_applied(self, kind: DefinitionKind) -> bool:
        return self.policies.action(kind, None) is DefinitionAction.APPLY

    def refit(self, table: Table) -> None:
        """Makes the target's table fit for rows of ``table`` that are copied again; it loses its rows where it has to be altered.
        Raises as ``apply``."""
        self.connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        for statement in refitting(self.connection, self.known_tables, self.policies, table):
            self._execute(statement, table.qualified_name)

    def _execute_all(self, found: Iterable[Statement], name: str) -> None:
        for statement in found:
            self._execute(statement, name)

    def _execute(self, statement: Statement, name: str) -> None:
        self._run(statement, name)
        _log.info("altered the target as the source was", name=name)

    def _run(self, statement: Statement, name: str) -> None:
        """Runs one statement, whatever its text holds: the extended protocol takes no second one."""
        try:
            self.connection.execute(statement, binary=True)
        except psycopg.Error as error:
            raise _refusal(error, statement, name) from None


def _numbers_here(by_name: Mapping[str, int], known: KnownTable, was: TableDefinition, now: TableDefinition) -> dict[int, int]:
    """Returns the numbers of the target's columns by those of the source's: where rows went to, or else those of their
    names."""
    there, before = set(by_name.values()), set(was.columns)
    found: dict[int, int] = {}
    for column in (*now.columns, *was.columns):  # earlier columns may be remembered by their earlier name
        remembered = known.columns.get(column.name, 0) if column in before else 0
        if remembered in there:
            found[column.number] = remembered
    taken = set(found.values())
    for column in (*now.columns, *was.columns):
        here = by_name.get(column.name)
        if here is not None and here not in taken:
            found.setdefault(column.number, here)
    return found


_CAUSES = {
    "2BP01": "something there needs it, like a view or a rule: drop that, and make it again afterwards",
    "0A000": "something there needs it, like a view, a rule or another column: drop that, and make it again afterwards",
    "42501": "the worker's role needs the right to it: let that role own it, or do it as its owner",
    "42701": "there is another column of that name: rename that",
    "42P07": "there is another table of that name: rename that",
    "42710": "there is another object of that name: rename that",
    "23505": "several rows there have the same values in it: remove those that only the target has",
    "23502": "rows there have NULL in it: fill it",
    "42804": "PostgreSQL does not convert the values automatically: convert them there",
}
"""The obstacle and the way out, by SQLSTATE."""


def _refusal(error: psycopg.Error, statement: Statement, name: str) -> PgsluiceError:
    tried = statement.as_string()
    if is_transient(error):
        fact = f"a lock on '{name}' at the target is held by another session"
        return TransientError(fact, f"it is tried again: {tried}", Cause.LOCK)
    what = f"the target refused the source's change of '{name}' ({type(error).__name__}, SQLSTATE {error.sqlstate}): {tried}"
    return TerminalError(what, _CAUSES.get(error.sqlstate or "", "change the target so that it takes the statement"))
