"""The source's tables that a worker writes, and their destinations: the table ``pgsluice.tables``.

group_name, worker            owner of the row; a replay shares its worker's
oid                           the source's table, which keeps its OID when it is renamed or gets another schema
table_schema, table_name      where its rows go: the source's name, or a route's
source_schema, source_name    the source's name when it was seen last
target_oid                    the target's table, which keeps its OID as well
target_database               where that OID is valid: a target that was restored from a dump has others
column_names, column_numbers  the source's names of its columns, now or before, and ``attnum`` of each at the target
column_types                  the source's types of its columns when it was seen last, by name (text for one that was made as text
                              for want of its type); NULL where that is not known
source_numbers                ``attnum`` of each at the source, likewise
missed, missed_since          changes that met no row, and when the first of them was applied; 0 and NULL without any
missed_updates, …_deletes     those of them whose kind is known
missed_positions              of the first of them, MOST_POSITIONS at most

So a name that is new for a known table is either another route or a rename, and a table or a column that was renamed at
the target is found again. It is forgotten together with the worker's position.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from psycopg import sql
from psycopg.types.json import Jsonb

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import TableDefinition
from pgsluice.shared.wire.names import replayed_worker
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.type_names import TEXT
from pgsluice.worker.sinks.sink import MissedChanges

Name = tuple[str, str]
"""Schema and name."""

MOST_POSITIONS = 10
"""Positions kept of a table's changes that met no row: enough to see what they have in common."""

_DATABASE = (
    "(SELECT s.system_identifier || '/' || d.oid FROM pg_control_system() s, pg_database d WHERE d.datname = current_database())"
)
_TABLE = own_table("tables")
_KNOWN = (
    "SELECT oid::bigint, CASE WHEN target_database = " + _DATABASE + " THEN target_oid::bigint ELSE 0 END,"
    " column_names, column_numbers, column_types, source_numbers, table_schema, table_name, source_schema, source_name"
    " FROM {} WHERE group_name = %s AND worker = %s"
)
_READ = sql.SQL(_KNOWN + " AND oid = ANY (%s::oid[])").format(_TABLE)
_AT = sql.SQL(_KNOWN + " AND target_oid = %s::oid AND target_database = " + _DATABASE).format(_TABLE)
_REMEMBER = sql.SQL(
    "INSERT INTO {} AS known (group_name, worker, oid, table_schema, table_name, source_schema, source_name, target_oid,"
    " column_names, column_numbers, column_types, source_numbers, target_database)"
    " VALUES (%s, %s, %s::oid, %s, %s, %s, %s, %s::oid, %s, %s::smallint[], %s::jsonb, %s::jsonb, " + _DATABASE + ")"
    " ON CONFLICT (group_name, worker, oid, table_schema, table_name) DO UPDATE SET source_schema = excluded.source_schema,"
    " source_name = excluded.source_name, target_oid = excluded.target_oid, column_names = excluded.column_names,"
    " column_numbers = excluded.column_numbers, column_types = excluded.column_types,"
    " source_numbers = excluded.source_numbers, target_database = excluded.target_database"
).format(_TABLE)
_REPLACE = sql.SQL(
    "UPDATE {} SET table_schema = %s, table_name = %s, source_schema = %s, source_name = %s, target_oid = %s::oid,"
    " column_names = %s, column_numbers = %s::smallint[], column_types = %s::jsonb, source_numbers = %s::jsonb"
    " WHERE group_name = %s AND worker = %s AND oid = %s::oid AND table_schema = %s AND table_name = %s"
).format(_TABLE)
_FORGET = sql.SQL("DELETE FROM {} WHERE group_name = %s AND worker = %s").format(_TABLE)
_FORGET_PLACE = sql.SQL(
    "DELETE FROM {} WHERE group_name = %s AND worker = %s AND oid = %s::oid AND table_schema = %s AND table_name = %s"
).format(_TABLE)
_OTHERS = sql.SQL(
    "SELECT FROM {} WHERE group_name = %s AND worker = %s AND oid <> %s::oid AND target_oid = %s::oid AND target_database = "
    + _DATABASE
).format(_TABLE)
_SUCCESSOR = sql.SQL(
    "SELECT FROM {} WHERE group_name = %s AND worker = %s AND oid > %s::oid"
    " AND (table_schema, table_name, source_schema, source_name) = (%s, %s, %s, %s)"
    " AND target_oid = %s::oid AND target_database = " + _DATABASE
).format(_TABLE)
_SHARERS = sql.SQL(
    "SELECT source_schema, source_name, worker, group_name FROM {}"
    " WHERE (group_name, worker, oid) <> (%(group)s, %(worker)s, %(oid)s::oid)"
    " AND NOT (oid < %(oid)s::oid AND (group_name, worker, table_schema, table_name, source_schema, source_name)"
    " = (%(group)s, %(worker)s, %(schema)s, %(name)s, %(source_schema)s, %(source_name)s))"
    " AND target_oid = %(target)s::oid AND target_database = " + _DATABASE + " LIMIT 1"
).format(_TABLE)
_COUNT = sql.SQL(
    "UPDATE {} SET missed = missed + %s, missed_updates = missed_updates + %s, missed_deletes = missed_deletes + %s,"
    " missed_positions = (missed_positions || %s::text[])[1:" + str(MOST_POSITIONS) + "],"
    " missed_since = coalesce(missed_since, now())"
    " WHERE group_name = %s AND worker = %s AND oid = %s::oid AND table_schema = %s AND table_name = %s"
).format(_TABLE)
_CLEAR = sql.SQL(
    "UPDATE {} SET missed = 0, missed_since = NULL, missed_updates = 0, missed_deletes = 0, missed_positions = ARRAY[]::text[]"
    " WHERE group_name = %s AND worker = %s AND missed > 0 AND oid = %s::oid"
).format(_TABLE)
_MISSED = sql.SQL(
    "SELECT oid::bigint, source_schema, source_name, table_schema, table_name, missed, missed_since,"
    " missed_updates, missed_deletes, missed_positions FROM {}"
    " WHERE group_name = %s AND worker = %s AND missed > 0 ORDER BY table_schema, table_name, oid"
).format(_TABLE)
_NAME_OF = "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s::oid"
_IS_THERE = "SELECT FROM pg_class WHERE oid = %s::oid OR oid = to_regclass(%s)"


@dataclass(frozen=True, slots=True)
class KnownTable:
    """One place that rows of the source's table ``oid`` went to. ``target_oid`` is 0 when the target is another database since.
    ``columns`` are numbers of the target's by names of the source's, ``types`` the source's types by the names that it has,
    text for a column that was made as text because the target did not have its type. ``source_numbers`` are the source's, by the
    same names, 0 or missing where they are not known."""

    oid: int
    place: Name
    source: Name
    target_oid: int
    columns: Mapping[str, int]
    types: Mapping[str, str]
    source_numbers: Mapping[str, int] = field(default_factory=dict)

    def made_as_text(self, was: TableDefinition) -> set[int]:
        """Returns numbers of the source's columns that are text here because their types, in ``was``, are missing."""
        return {each.number for each in was.columns if each.type_name != TEXT == self.types.get(each.name)}

    def is_text(self, column: Column) -> bool:
        """Returns whether the source's column, which may have another name by now, is noted as text."""
        named = next((name for name, number in self.source_numbers.items() if number and number == column.number), column.name)
        return self.types.get(named) == TEXT


class MissedChange(NamedTuple):
    """An update or a delete. ``position`` is None if only the number of misses is known."""

    table: Table
    is_delete: bool
    position: Position | None


Missing = Counter[MissedChange]


Known = Mapping[int, Sequence[KnownTable]]
"""Known tables by the source's OID."""

NOTHING_KNOWN: Known = {}


@dataclass(frozen=True, slots=True)
class TableDestination:
    """Destination of ``table``: the target's table ``oid``, and its columns of these numbers. ``texts`` are text
    columns there; ``is_made``: it was created just now, so they replace missing types."""

    table: Table
    oid: int
    columns: Mapping[str, int]
    texts: frozenset[str] = frozenset()
    is_made: bool = False


@dataclass(frozen=True, slots=True)
class KnownTables:
    """The memory of one worker of one group. Picklable."""

    group: str
    worker: str

    @classmethod
    def of(cls, group: str, worker: str) -> KnownTables:
        return cls(group, replayed_worker(worker))

    def read(self, connection: Connection, tables: Iterable[Table]) -> Known:
        return self._read(connection, [table.oid for table in tables])

    def _read(self, connection: Connection, oids: Sequence[int]) -> Known:
        found: dict[int, list[KnownTable]] = defaultdict(list)
        for row in connection.execute(_READ, [*self._owner, oids]).fetchall():
            known = _known_table(*row)
            found[known.oid].append(known)
        return found

    def of_table(self, connection: Connection, oid: int) -> Sequence[KnownTable]:
        """Returns the destinations of the source's table ``oid``."""
        return self._read(connection, [oid]).get(oid, ())

    def predecessor(self, connection: Connection, table: Table, target_oid: int) -> KnownTable | None:
        """Returns the table that had the name and place of ``table`` before it, and went into the target's table
        ``target_oid``: the source dropped it and created it again. None if ``table`` itself did, or nothing did."""
        known = [_known_table(*row) for row in connection.execute(_AT, [*self._owner, target_oid]).fetchall()]
        if any(each.oid == table.oid for each in known):
            return None
        named = [each for each in known if (each.source, each.place) == (table.source_name, _place(table))]
        return max(named, key=lambda each: each.oid, default=None)

    def is_succeeded(self, connection: Connection, known: KnownTable) -> bool:
        """Returns whether a younger table has the name and the place of ``known``, which the source dropped or renamed:
        messages about ``known`` do not concern the rows there any more."""
        names = [*known.place, *known.source]
        return connection.execute(_SUCCESSOR, [*self._owner, known.oid, *names, known.target_oid]).rowcount > 0

    def sharer(self, connection: Connection, known: KnownTable) -> str | None:
        """Returns another table whose rows go to the same table of the target, in words, of whichever group; None if
        there are only tables that ``known`` has succeeded."""
        (group, worker), (schema, name), (source_schema, source_name) = self._owner, known.place, known.source
        values = {"group": group, "worker": worker, "oid": known.oid, "target": known.target_oid}
        names = {"schema": schema, "name": name, "source_schema": source_schema, "source_name": source_name}
        row = connection.execute(_SHARERS, values | names).fetchone()
        return None if row is None else "table {}.{} of worker {} of group {}".format(*row)

    def replace(self, connection: Connection, known: KnownTable, now: KnownTable) -> None:
        """``now`` is what became of ``known``; what was counted stays."""
        names = [*now.place, *now.source]
        values = [*names, now.target_oid, list(now.columns), list(now.columns.values()), *_by_name(now)]
        connection.execute(_REPLACE, [*values, *self._owner, known.oid, *known.place])

    def remember(self, connection: Connection, destinations: Iterable[TableDestination], known: Known = NOTHING_KNOWN) -> None:
        """Stores the destinations of tables, except the ones in ``known``."""
        news = [each for each in destinations if self._entry(each, known) not in known.get(each.table.oid, ())]
        if not news:
            return
        entries = {**self.read(connection, [each.table for each in news])}
        rows = []
        for each in news:
            entry = self._entry(each, entries)
            entries[entry.oid] = [*entries.get(entry.oid, ()), entry]  # another version of the table may be news too
            columns = [list(entry.columns), list(entry.columns.values()), *_by_name(entry)]
            rows.append([entry.oid, *entry.place, *entry.source, each.oid, *columns])
        with connection.cursor() as cursor:
            cursor.executemany(_REMEMBER, [[*self._owner, *row] for row in rows])

    def _entry(self, destination: TableDestination, known: Known) -> KnownTable:
        table, oid = destination.table, destination.oid
        every_column = {**known_columns(table, oid, known), **destination.columns}
        noted = [entry for entry in known.get(table.oid, ()) if entry.target_oid == oid]
        texts = [column for column in table.columns if column.name in destination.texts]
        as_text = {each.name for each in texts if destination.is_made or any(entry.is_text(each) for entry in noted)}
        types = {column.name: TEXT if column.name in as_text else column.type_name for column in table.columns}
        numbers = {column.name: column.number for column in table.columns}
        return KnownTable(table.oid, _place(table), table.source_name, oid, every_column, types, numbers)

    def forget(self, connection: Connection) -> None:
        connection.execute(_FORGET, self._owner)

    def forget_place(self, connection: Connection, known: KnownTable) -> None:
        """Forgets the place: no row of ``known`` goes there any more."""
        connection.execute(_FORGET_PLACE, [*self._owner, known.oid, *known.place])

    def moved_to(self, connection: Connection, table: Table, known: Known, found_oid: int | None) -> Name | None:
        """Returns the name of the target's table for ``table`` when it was renamed there; None when its name is its
        own. ``found_oid`` is the table of that name (None: no such table): it may be another one's by now."""
        here = _known_at(table, known)
        if here is None or here.target_oid == found_oid:
            return None
        if found_oid is not None and not connection.execute(_OTHERS, [*self._owner, table.oid, found_oid]).rowcount:
            return None
        row = connection.execute(_NAME_OF, [here.target_oid]).fetchone()
        return None if row is None else (row[0], row[1])

    def check_name(self, connection: Connection, table: Table, known: Known, found_oid: int | None) -> None:
        """Raises TerminalError when ``table`` is a table whose rows are elsewhere, because the source renamed it. That ends when
        the target's table is renamed too, or a route sends its rows there."""
        entries = known.get(table.oid, ())
        if not entries or _known_at(table, known) is not None or any(entry.source == table.source_name for entry in entries):
            return
        if found_oid is not None and any(entry.target_oid == found_oid for entry in entries):
            return
        for entry in entries:
            parameters = [entry.target_oid, sql.Identifier(*entry.place).as_string()]
            if connection.execute(_IS_THERE, parameters).rowcount:
                raise _renamed(table, entry, is_taken=found_oid is not None)

    def count_missed(self, connection: Connection, missed: Missing) -> None:
        """Counts missed changes, in the transaction that applied the changes."""
        places: defaultdict[tuple[int, Name], Missing] = defaultdict(Missing)
        for each, changes in missed.items():
            places[each.table.oid, _place(each.table)][each] += changes
        for (oid, place), counted in sorted(places.items(), key=itemgetter(0)):
            kinds: Counter[bool] = Counter()
            for each, changes in counted.items():
                kinds[each.is_delete] += changes
            positions = sorted({each.position for each in counted if each.position is not None})[:MOST_POSITIONS]
            values = [counted.total(), kinds[False], kinds[True], list(map(str, positions))]
            connection.execute(_COUNT, [*values, *self._owner, oid, *place])

    def clear_missed(self, connection: Connection, tables: Iterable[Table]) -> None:
        """Clears the counts of tables that are emptied and filled again."""
        for table in tables:
            connection.execute(_CLEAR, [*self._owner, table.oid])

    def missed(self, connection: Connection) -> list[MissedChanges]:
        """Returns the misses by table, sorted by name."""
        found = []
        for row in connection.execute(_MISSED, self._owner).fetchall():
            oid, source_schema, source_name, schema, name, changes, since, updates, deletes, positions = row
            source, place, parsed = (source_schema, source_name), (schema, name), tuple(map(Position.parse, positions))
            found.append(MissedChanges(oid, source, place, changes, since.isoformat(), updates, deletes, parsed))
        return found

    @property
    def _owner(self) -> list[str]:
        return [self.group, self.worker]


def _known_table(
    oid: int,
    target_oid: int,
    columns: list[str],
    numbers: list[int],
    types: Mapping[str, str] | None,
    source_numbers: Mapping[str, int] | None,
    *names: str,
) -> KnownTable:
    """Returns the known table in a row of ``_KNOWN``."""
    schema, name, source_schema, source_name = names
    by_name = dict(zip(columns, numbers, strict=True))
    return KnownTable(oid, (schema, name), (source_schema, source_name), target_oid, by_name, types or {}, source_numbers or {})


def _by_name(known: KnownTable) -> tuple[Jsonb, Jsonb]:
    return Jsonb(dict(known.types)), Jsonb(dict(known.source_numbers))


def known_columns(table: Table, target_oid: int, known: Known) -> dict[str, int]:
    """Returns numbers of columns of the target's table, by all names that the source's columns had."""
    columns: dict[str, int] = {}
    for entry in known.get(table.oid, ()):
        if entry.target_oid == target_oid:
            columns |= entry.columns
    return columns


def _place(table: Table) -> Name:
    return table.schema, table.name


def _known_at(table: Table, known: Known) -> KnownTable | None:
    return next((entry for entry in known.get(table.oid, ()) if entry.place == _place(table)), None)


def _renamed(table: Table, entry: KnownTable, *, is_taken: bool) -> TerminalError:
    was, now, there = ".".join(entry.source), ".".join(table.source_name), ".".join(entry.place)
    taken = f" (away with the other table of that name, '{table.qualified_name}', first)" if is_taken else ""
    return TerminalError(
        f"table '{was}' of the source is called '{now}' now, and its rows at the target are in '{there}'",
        f"rename it there{taken}: {_rename_statement(entry.place, _place(table))}; or give '{now}' a route to '{there}'"
        " (routing-config). Then start again: nothing is lost",
    )


def _rename_statement(was: Name, now: Name) -> str:
    statements, (schema, name) = [], was
    if now[0] != schema:
        statements.append(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(sql.Identifier(*was), sql.Identifier(now[0])))
        schema = now[0]
    if now[1] != name:
        statements.append(sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.Identifier(schema, name), sql.Identifier(now[1])))
    return sql.SQL("; ").join(statements).as_string()
