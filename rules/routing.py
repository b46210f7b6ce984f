"""The destinations of rows: the tables that a source table becomes, their names, columns and operations.

Routing comes after the rules, so a route uses the source's names. It reads no value: a table that is only renamed keeps
its lists of values as they are. A table without a route continues unchanged.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, TableChanges, Truncation
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table, TableName, TablePattern, table_names

NO_NAMES: Mapping[int, TableName] = {}

TRUNCATE = ord("T")
EVERY_OPERATION = frozenset({INSERT, UPDATE, DELETE, TRUNCATE})


@dataclass(frozen=True, slots=True)
class Route:
    """One destination of the tables that ``source`` names. ``schema`` and ``table`` are "" where the source's is kept.

    ``renamed`` are pairs of column names, the source's and the destination's; ``dropped`` columns do not leave.
    ``operations`` are INSERT, UPDATE, DELETE and TRUNCATE; rows that a snapshot copied are INSERTs. ``is_optional``:
    neither the table nor the columns need be there yet. A route for a pattern of tables renames and drops the columns
    that a table has. ``place`` is the route's place in the file.
    """

    source: TablePattern
    schema: str
    table: str
    renamed: tuple[tuple[str, str], ...]
    dropped: frozenset[str]
    operations: frozenset[int]
    place: str = field(compare=False)
    is_optional: bool = False

    def destination_of(self, name: TableName) -> TableName:
        """Returns the destination's name for that name at the source."""
        return self.schema or name[0], self.table or name[1]

    def canonical(self) -> str:
        """Returns a text that is equal for routes with the same effect, wherever and however they were written."""
        operations = "".join(sorted(map(chr, self.operations)))
        return repr((self.source.text, self.schema, self.table, sorted(self.renamed), sorted(self.dropped), operations))

    def problems(self, table: Table) -> Iterator[str]:
        """Yields the reasons why ``table`` cannot take this route."""
        names = {column.name for column in table.columns}
        for name in [*(source for source, _ in self.renamed), *sorted(self.dropped)]:
            if name not in names and self.source.is_name and not self.is_optional:
                yield f"{self.place}: table '{table.qualified_name}' has no column '{name}'"
        kept = [column.name for column in table.columns if column.name not in self.dropped]
        if not kept:
            yield f"{self.place}: no column of table '{table.qualified_name}' is left"
        renamed = dict(self.renamed)
        destinations = [renamed.get(name, name) for name in kept]
        for name in sorted({name for name in destinations if destinations.count(name) > 1}):
            yield f"{self.place}: two columns of table '{table.qualified_name}' would be called '{name}'"
        if self.operations & {UPDATE, DELETE}:
            for name in (table.columns[i].name for i in table.key):
                if name in self.dropped:
                    yield (
                        f"{self.place}: column '{name}' is part of the key of table '{table.qualified_name}' and cannot be"
                        " dropped, unless the route takes INSERT alone"
                    )


class BoundRoute:
    """A route as one version of a table takes it. ``destination`` is what the table becomes."""

    def __init__(self, route: Route, table: Table) -> None:
        """Raises TerminalError when the table cannot take the route."""
        problems = list(route.problems(table))
        if problems:
            raise TerminalError("; ".join(problems), "correct the routing file, or the table, and start again")
        kept = [i for i, column in enumerate(table.columns) if column.name not in route.dropped]
        self.destination = _destination(route, table, kept)
        self.keeps_every_column = len(kept) == len(table.columns)
        self._kept = kept
        self._operations = route.operations
        self._row_operations = bytes(route.operations & {INSERT, UPDATE, DELETE})

    def takes(self, operation: int) -> bool:
        return operation in self._operations

    def apply(self, changes: TableChanges) -> TableChanges | None:
        """Returns the changes under their new names; None when the route takes none of them. Lists of values are shared
        with ``changes`` wherever rows are not chosen."""
        if changes.operations.translate(None, self._row_operations):
            rows = [row for row, operation in enumerate(changes.operations) if operation in self._operations]
            if not rows:
                return None
            changes = changes.select(rows)
        new, old = changes.new, changes.old
        if not self.keeps_every_column:
            new = [new[i] for i in self._kept]
            old = None if old is None else [old[i] for i in self._kept]
        return TableChanges(self.destination, changes.operations, changes.change_indexes, new, old, changes.old_kinds)


def _destination(route: Route, table: Table, kept: Sequence[int]) -> Table:
    renamed = dict(route.renamed)
    columns = [replace(table.columns[i], name=renamed.get(table.columns[i].name, table.columns[i].name)) for i in kept]
    identity = table.replica_identity
    dropped = [column for i, column in enumerate(table.columns) if i not in set(kept)]
    if any(column.primary_key_position is not None for column in dropped):
        columns = [replace(column, primary_key_position=None) for column in columns]
    if any(table.columns[i] in dropped for i in table.key):
        columns = [_without_identity(column) for column in columns]
        identity = ReplicaIdentity.NOTHING
    schema, name = route.destination_of((table.schema, table.name))
    origin = None if (schema, name) == table.source_name else table.source_name
    return replace(table, schema=schema, name=name, replica_identity=identity, columns=tuple(columns), origin=origin)


def _without_identity(column: Column) -> Column:
    """Returns the column for a table whose rows can no longer be distinguished."""
    return replace(column, primary_key_position=None, identity_key=False)


class Routing:
    """The routes of a file, in its order. Picklable; what it has bound to tables is not."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._bound: dict[tuple[Table, TableName | None], tuple[BoundRoute, ...] | None] = {}

    def __reduce__(self) -> tuple[type[Routing], tuple[tuple[Route, ...]]]:
        return Routing, (self.routes,)

    @property
    def hash(self) -> str:
        """Hex; the same for files with the same effect, "" without routes. Routes of different tables have no order."""
        if not self.routes:
            return ""
        return hashlib.sha256("\n".join(sorted(route.canonical() for route in self.routes)).encode()).hexdigest()

    def bind(self, table: Table, names: Mapping[int, TableName] = NO_NAMES) -> tuple[BoundRoute, ...] | None:
        """Returns the routes of ``table``; None when it continues unchanged. ``names`` are the names of tables when the
        routes were checked against them, by OID: routes of that name and of the one it has now are its own. Raises
        TerminalError when it cannot take its route, or when it would go where another table goes."""
        if not self.routes:
            return None
        key = table, names.get(table.oid)
        if key not in self._bound:
            self._bound[key] = self._bind(table, names)
        return self._bound[key]

    def apply(self, changes: TableChanges, names: Mapping[int, TableName] = NO_NAMES) -> list[TableChanges]:
        """Returns ``changes`` at each destination. Raises as ``bind`` does."""
        bound = self.bind(changes.table, names)
        if bound is None:
            return [changes]
        return [routed for route in bound if (routed := route.apply(changes)) is not None]

    def truncate(self, truncation: Truncation, names: Mapping[int, TableName] = NO_NAMES) -> Truncation | None:
        """Returns the truncation of the tables' destinations; None when no route takes it. Raises as ``bind`` does."""
        bound = [self.bind(table, names) for table in truncation.tables]
        if not any(bound):
            return truncation
        tables: list[Table] = []
        for table, routes in zip(truncation.tables, bound, strict=True):
            tables += [table] if routes is None else [route.destination for route in routes if route.takes(TRUNCATE)]
        return replace(truncation, tables=tuple(tables)) if tables else None

    def problems(self, tables: Sequence[Table]) -> list[str]:
        """Returns everything wrong with the routes, ``tables`` being all the tables there are."""
        found = [problem for route in self.routes for table in self._taking(route, tables) for problem in route.problems(table)]
        for route in self.routes:
            matching = [table.qualified_name for table in tables if route.source.matches(table.schema, table.name)]
            if not matching and not route.is_optional:
                found.append(f"{route.place}: there is no table '{route.source.text}'")
            elif route.source.is_name and len(matching) > 1:
                found.append(f"{route.place}: '{route.source.text}' could be {' or '.join(matching)}; write the schema too")
        takers: dict[tuple[str, str], str] = {}
        for table in tables:
            for schema, name in self.destinations((table.schema, table.name)):
                other = takers.setdefault((schema, name), table.qualified_name)
                if other != table.qualified_name:
                    found.append(f"tables '{other}' and '{table.qualified_name}' would both go to '{schema}.{name}'")
        return found

    def _taking(self, route: Route, tables: Iterable[Table]) -> list[Table]:
        return [table for table in tables if route in self._routes_of(table_names(table, None))]

    def touches(self, names: Iterable[TableName]) -> bool:
        """Returns whether a table of these names has a route."""
        return any(route.source.matches(*name) for route in self.routes for name in names)

    def _routes_of(self, names: Sequence[TableName]) -> list[Route]:
        """Returns the routes of a table that has these names: only the routes of the most exact name. A pattern applies
        to tables that nothing else names."""
        matching = [route for route in self.routes if any(route.source.matches(*name) for name in names)]
        most_exact = max((_exactness(route.source) for route in matching), default=None)
        return [route for route in matching if _exactness(route.source) == most_exact]

    def destinations(self, name: TableName) -> list[TableName]:
        """Returns the destinations of the table with that name at the source."""
        return [route.destination_of(name) for route in self._routes_of([name])] or [name]

    def _bind(self, table: Table, names: Mapping[int, TableName]) -> tuple[BoundRoute, ...] | None:
        if names and table.oid not in names:
            self._check_joined(table, names)
        routes = self._routes_of(table_names(table, names.get(table.oid)))
        if routes:
            return tuple(BoundRoute(route, table) for route in routes)
        for route in self.routes:
            if route.table and (route.schema or table.schema, route.table) == (table.schema, table.name):
                raise TerminalError(
                    f"table '{table.qualified_name}' has no route, and {route.place} sends '{route.source.text}' there",
                    f"give '{table.name}' a route too",
                )
        return None

    def _check_joined(self, table: Table, names: Mapping[int, TableName]) -> None:
        """Checks a table that joined later, or was created again, against the others, which were checked before."""
        own = table.schema, table.name
        taken = _taken_places(self.routes, frozenset(names.values()))
        for place in self.destinations(own):
            for name in sorted(taken.get(place, frozenset()) - {own}):
                raise TerminalError(
                    f"table '{table.qualified_name}' would go to '{'.'.join(place)}', where '{'.'.join(name)}' goes",
                    "give one of the tables a route to another place, or remove it from the group, and start the worker again",
                )


@lru_cache(maxsize=16)  # a group may have thousands of tables, and every task asks again
def _taken_places(routes: tuple[Route, ...], names: frozenset[TableName]) -> Mapping[TableName, frozenset[TableName]]:
    """Returns the tables that go to each place."""
    routing, taken = Routing(routes), defaultdict[TableName, set[TableName]](set)
    for name in names:
        for place in routing.destinations(name):
            taken[place].add(name)
    return {place: frozenset(goers) for place, goers in taken.items()}


def _exactness(pattern: TablePattern) -> tuple[bool, bool]:
    return pattern.is_name, pattern.schema is not None


NO_ROUTES = Routing(())
