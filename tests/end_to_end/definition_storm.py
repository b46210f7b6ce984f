"""Transactions at random that alter tables and write rows of them, and a look at both sides by catalog and by content."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.servers import Database

TABLES = 8
LABELS = ("sad", "happy")
SETUP = "CREATE SCHEMA storm_b; CREATE SCHEMA storm; CREATE TYPE storm.mood AS ENUM ('sad', 'happy')"

_COLUMNS = """
SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname IN ('storm', 'storm_b') AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2, 3
"""
_KEYS = """
SELECT n.nspname, t.relname, pg_get_constraintdef(c.oid) FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
JOIN pg_namespace n ON n.oid = t.relnamespace WHERE c.contype = 'p' AND n.nspname IN ('storm', 'storm_b') ORDER BY 1, 2
"""
_LABELS = "SELECT enumlabel FROM pg_enum WHERE enumtypid = 'storm.mood'::regtype ORDER BY enumsortorder"


@dataclass
class _Table:
    """As the source has it by now. ``columns`` are types by names, without ``id``; ``key`` is the constraint's name."""

    schema: str
    name: str
    columns: dict[str, str] = field(default_factory=lambda: {"v": "varchar(8)", "m": "storm.mood"})
    has_long_key: bool = False
    key: str = ""
    ids: list[int] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{self.schema}.{self.name}"


class DefinitionStorm:
    """Transactions one after the other, over connections that may break. ``kinds`` counts what they did."""

    def __init__(self, source: Database, seed: int) -> None:
        self._source = source
        self._choose = random.Random(seed)
        self._tables = [_Table("storm", f"t{number}") for number in range(TABLES)]
        self._names = 100
        self._labels = list(LABELS)
        self.transactions = 0
        self.kinds: dict[str, int] = {}

    def create_tables(self) -> None:
        self._source.execute(SETUP)
        for table in self._tables:
            table.key = f"key_{table.name}"
            columns = f"id bigint CONSTRAINT {table.key} PRIMARY KEY, v varchar(8) NOT NULL, m storm.mood"
            self._source.execute(f"CREATE TABLE {table.place} ({columns})")
        for place in ("storm.left_", "storm.right_", "storm_b.stays"):
            self._source.execute(f"CREATE TABLE {place} (n int PRIMARY KEY)")
        self._source.execute("INSERT INTO storm.left_ VALUES (0); INSERT INTO storm.right_ VALUES (0)")

    def write(self, least: int, stopping: threading.Event) -> None:
        """Until it is told to stop, and at least so many."""
        with self._source.connect(autocommit=False) as connection:
            while not stopping.is_set() or self.transactions < least:
                self._transaction(connection)
                connection.commit()
                self.transactions += 1
                stopping.wait(0.1)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("UPDATE storm.left_ SET n = n + 1")
        for _ in range(self._choose.randint(1, 3)):
            table = self._choose.choice(self._tables)
            self._rows(connection, table)
            if self._choose.random() < 0.6:
                self._alter(connection, table)
                self._rows(connection, table)
        connection.execute("UPDATE storm.right_ SET n = n + 1")

    def _rows(self, connection: psycopg.Connection[Any], table: _Table) -> None:
        for _ in range(self._choose.randint(0, 4)):
            self._names += 1
            if not table.ids or self._choose.random() < 0.6:
                table.ids.append(self._names)
                names = ["id", *table.columns]
                values = [str(self._names), *map(self._value, table.columns.values())]
                connection.execute(f"INSERT INTO {table.place} ({', '.join(names)}) VALUES ({', '.join(values)})")
            elif self._choose.random() < 0.7:
                name = self._choose.choice([*table.columns])
                value, found = self._value(table.columns[name]), self._choose.choice(table.ids)
                connection.execute(f"UPDATE {table.place} SET {name} = {value} WHERE id = {found}")
            else:
                found = table.ids.pop(self._choose.randrange(len(table.ids)))
                connection.execute(f"DELETE FROM {table.place} WHERE id = {found}")

    def _value(self, kind: str) -> str:
        if kind == "storm.mood":
            return f"'{self._choose.choice(self._labels)}'"
        return str(self._choose.randrange(1000)) if kind == "int" else f"'{self._choose.randrange(1000)}'"

    def _alter(self, connection: psycopg.Connection[Any], table: _Table) -> None:
        kinds: list[Callable[[_Table], str | None]] = [
            *(self._add, self._add_default, self._add_now, self._drop, self._rename, self._widen, self._rename_table),
            *(self._move, self._relax, self._tighten, self._rekey, self._rename_label),
        ]
        kind = self._choose.choice(kinds)
        statement = kind(table)
        if statement is not None:
            self.kinds[kind.__name__] = self.kinds.get(kind.__name__, 0) + 1
            connection.execute(statement)

    def _new(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _add(self, table: _Table) -> str:
        name = self._new("c")
        table.columns[name] = "varchar(8)"
        return f"ALTER TABLE {table.place} ADD COLUMN {name} varchar(8)"

    def _add_default(self, table: _Table) -> str:
        name = self._new("d")
        table.columns[name] = "int"
        return f"ALTER TABLE {table.place} ADD COLUMN {name} int NOT NULL DEFAULT {self._names}"

    def _add_now(self, table: _Table) -> str:
        return f"ALTER TABLE {table.place} ADD COLUMN {self._new('at')} timestamptz DEFAULT now()"

    def _drop(self, table: _Table) -> str | None:
        droppable = [name for name in table.columns if name not in ("v", "m")]
        if not droppable:
            return None
        name = self._choose.choice(droppable)
        del table.columns[name]
        return f"ALTER TABLE {table.place} DROP COLUMN {name}"

    def _rename(self, table: _Table) -> str | None:
        renamable = [name for name in table.columns if name not in ("v", "m")]
        if not renamable:
            return None
        was, now = self._choose.choice(renamable), self._new("r")
        table.columns = {now if name == was else name: kind for name, kind in table.columns.items()}
        return f"ALTER TABLE {table.place} RENAME COLUMN {was} TO {now}"

    def _widen(self, table: _Table) -> str | None:
        narrow = [name for name, kind in table.columns.items() if kind.startswith("varchar")]
        if not narrow:
            return None
        name = self._choose.choice(narrow)
        kind = "text" if table.columns[name] == "varchar(20)" else "varchar(20)"
        table.columns[name] = kind
        return f"ALTER TABLE {table.place} ALTER {name} TYPE {kind}"

    def _rename_table(self, table: _Table) -> str:
        was, table.name = table.place, self._new("t")
        return f"ALTER TABLE {was} RENAME TO {table.name}"

    def _move(self, table: _Table) -> str:
        was = table.place
        table.schema = "storm_b" if table.schema == "storm" else "storm"
        return f"ALTER TABLE {was} SET SCHEMA {table.schema}"

    def _relax(self, table: _Table) -> str | None:
        return None if table.has_long_key else f"ALTER TABLE {table.place} ALTER v DROP NOT NULL"

    def _tighten(self, table: _Table) -> str:
        return f"ALTER TABLE {table.place} ALTER v SET NOT NULL"

    def _rekey(self, table: _Table) -> str:
        """To ``v`` and ``id`` and back: unique either way."""
        table.has_long_key = not table.has_long_key
        was, table.key = table.key, self._new("key")
        columns = "v, id" if table.has_long_key else "id"
        return f"ALTER TABLE {table.place} DROP CONSTRAINT {was}, ADD CONSTRAINT {table.key} PRIMARY KEY ({columns})"

    def _rename_label(self, _: _Table) -> str:
        index, now = self._choose.randrange(len(self._labels)), self._new("l")
        was, self._labels[index] = self._labels[index], now
        return f"ALTER TYPE storm.mood RENAME VALUE '{was}' TO '{now}'"


def are_equal(source: Database, target: Database) -> bool:
    try:
        return _look(source) == _look(target)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
        return False  # altered meanwhile


def _look(database: Database) -> dict[str, Any]:
    """Columns, keys and labels by catalog, rows by content, whatever the order of columns."""
    columns = database.execute(_COLUMNS)
    found: dict[str, Any] = {"columns": columns, "keys": database.execute(_KEYS), "labels": database.execute(_LABELS)}
    for place in sorted({(schema, table) for schema, table, _, _ in columns}):
        names = ", ".join(f'"{column}"::text' for schema, table, column, _ in columns if (schema, table) == place)
        rows = f"(SELECT {names} FROM {'.'.join(place)}) row"
        query = f"SELECT count(*), md5(string_agg(row::text, '' ORDER BY row::text)) FROM {rows}"
        found[".".join(place)] = database.execute(query)
    return found


@contextmanager
def watched_for_halves(target: Database) -> Iterator[list[tuple[int, int]]]:
    """What a reader saw of both counters while they differed, within one snapshot."""
    torn: list[tuple[int, int]] = []
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.wait(0.02):
            try:
                [(left, right)] = target.execute("SELECT (SELECT n FROM storm.left_), (SELECT n FROM storm.right_)")
            except psycopg.Error:
                continue  # it is being killed, or has no such table yet
            if left != right:
                torn.append((left, right))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield torn
    finally:
        stopping.set()
        thread.join()
