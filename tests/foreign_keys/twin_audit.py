"""What is wrong at the target of a random schema: rows that no commit of the source left, and its own things that are lost."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.errors import DeadlockDetected

from tests.foreign_keys.random_twin import RandomTwin
from tests.foreign_keys.schema_load import State
from tests.servers import Database
from tests.target_reader import Reader

Connection = psycopg.Connection[tuple[Any, ...]]


class OwnThings:
    """What only the target has, as it was at the last ``mark``."""

    def __init__(self, database: Database, twin: RandomTwin) -> None:
        self._database = database
        self._twin = twin
        self._marked: dict[str, frozenset[Any]] = {table.name: frozenset() for table in twin.schema.tables}
        self._referring: dict[str, frozenset[Any]] = {foreign_key.table: frozenset() for _, foreign_key in twin.own}

    def mark(self) -> None:
        """Writes as somebody does who knows nothing of replication, but fires no triggers; again when the server has chosen this
        one to end a deadlock with the worker."""
        while not self._has_marked():
            pass

    def _has_marked(self) -> bool:
        with self._database.connect() as connection, contextlib.suppress(DeadlockDetected), connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
            for table in self._twin.schema.tables:
                _rows(connection, f"UPDATE {table.name} SET own = 'own ' || born")
                self._marked[table.name] = _rows(
                    connection, f"SELECT born FROM {table.name} WHERE own = 'own ' || born"
                )  # a worker may write
            for table, foreign_key in self._twin.own:
                columns = ", ".join(["of_born", *foreign_key.columns])
                _rows(
                    connection,
                    f"INSERT INTO {foreign_key.table} ({columns}) SELECT born, {', '.join(table.key_columns)} FROM {table.name}"
                    f" WHERE born NOT IN (SELECT of_born FROM {foreign_key.table}) ORDER BY born DESC LIMIT 3",
                )
                self._referring[foreign_key.table] = self._rows_of(connection, foreign_key.table)
            return True
        return False

    def losses(self, *, acts: bool) -> list[str]:
        """What is lost although the replicated row that it belongs to lives. Where the target's foreign keys and triggers do not
        act (``acts``), nothing else may change either."""
        with self._database.connect() as connection:
            found = [each for table in self._twin.schema.tables for each in self._lost_columns(connection, table.name)]
            for table, foreign_key in self._twin.own:
                now, before = self._rows_of(connection, foreign_key.table), self._referring[foreign_key.table]
                if not acts:
                    found += [f"{foreign_key.table}: {len(before ^ now)} rows changed"] if before != now else []
                    continue
                alive = {born for (born,) in _rows(connection, f"SELECT born FROM {table.name}")}
                lost = {born for born, *_ in before} & alive - {born for born, *_ in now}
                found += [f"{foreign_key.table}: the row of {born} is gone" for born in sorted(lost)]
            fired = _rows(connection, "SELECT DISTINCT name, operation FROM fired") if not acts else ()
            return found + [f"a trigger of {name} fired on {operation}" for name, operation in fired]

    def _lost_columns(self, connection: Connection, table: str) -> list[str]:
        rows = _rows(connection, f"SELECT born, own FROM {table} WHERE own IS DISTINCT FROM 'own ' || born")
        return [f"{table}: the row born as {born} has {own!r}" for born, own in rows if (born,) in self._marked[table]]

    def _rows_of(self, connection: Connection, table: str) -> frozenset[Any]:
        """Without their numbers."""
        return _rows(connection, f"SELECT of_born, to_jsonb(t)::text FROM {table} t")


def _rows(connection: Connection, query: str) -> frozenset[Any]:
    cursor = connection.execute(query.encode())
    return frozenset(cursor.fetchall() if cursor.description else ())


class StateWatch(Reader):
    """``torn`` are looks that saw no commit of the source, ``backwards`` those that saw an earlier one than before. It gives way
    before a deadlock is looked for: it holds tables that a TRUNCATE of the worker wants while it waits for others that the worker
    has."""

    def __init__(self, database: Database, query: str, states: Mapping[int, State]) -> None:
        super().__init__(database)
        self._query = query.encode()
        self._states = states
        self.newest = -1
        self.seen: set[int] = set()
        self.torn: list[State] = []
        self.backwards: list[tuple[int, int]] = []

    def look(self, connection: psycopg.Connection[State]) -> None:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '300ms'")
            state = connection.execute(self._query).fetchone()
        if state is None or state[0] is None:
            return  # nothing is applied yet
        number = int(state[0])
        if self._states.get(number) != state:
            self.torn.append(state)
        if number < self.newest:
            self.backwards.append((self.newest, number))
        self.newest = number
        self.seen.add(number)
