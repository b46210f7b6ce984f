"""Random transactions in a random schema. What a constraint refuses is rolled back to a savepoint, so statements may be wrong."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from tests.foreign_keys.random_schema import COUNTERS, ForeignKey, RandomSchema, RandomTable
from tests.servers import Database

Connection = psycopg.Connection[tuple[Any, ...]]

KEYS = 40
"""So many values a key column takes, besides those of rows that were moved away. Few, so that rows meet."""

State = tuple[str, ...]


class SchemaLoad:
    """Writes in one connection, so commits have an order: ``states`` is what ``checksums_query`` said after each, by its number.
    ``seed`` makes it the same load again."""

    def __init__(self, database: Database, schema: RandomSchema, seed: int) -> None:
        self._schema = schema
        self._choose = random.Random(seed)
        self._connection = database.connect()
        self._born = 0
        self.states: dict[int, State] = {0: ()}
        self.refused = 0
        self.done = 0
        with self._connection.transaction():
            for counter in COUNTERS:
                self._execute(f"INSERT INTO {counter} VALUES (1, 0)")
            self._note()

    @property
    def newest(self) -> int:
        """The number of the last commit."""
        return self.done

    def close(self) -> None:
        self._connection.close()

    def run_until(self, stopping: threading.Event) -> None:
        while not stopping.wait(self._choose.expovariate(100)):
            self.run(self._choose.randint(1, 10))

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            try:
                with self._connection.transaction():
                    self._transaction()
                self.done += 1
            except psycopg.errors.IntegrityError:
                self.refused += 1  # by a check that waits for the commit

    def _transaction(self) -> None:
        self._execute(f"UPDATE {COUNTERS[0]} SET n = n + 1")
        if self._choose.random() < 0.5:
            self._execute("SET CONSTRAINTS ALL DEFERRED")
        for _ in range(self._choose.randint(1, 6)):
            try:
                with self._connection.transaction():
                    self._choose.choices(_STATEMENTS, _WEIGHTS)[0](self, self._choose.choice(self._schema.tables))
            except (psycopg.errors.IntegrityError, psycopg.errors.FeatureNotSupported, psycopg.errors.ObjectInUse):
                self.refused += 1
        self._execute(f"UPDATE {COUNTERS[1]} SET n = n + 1")
        self._note()

    def _note(self) -> None:
        [state] = self._execute(self._schema.checksums_query())
        self.states[int(state[0])] = state

    def _execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def _number(self) -> int:
        return self._choose.randint(1, KEYS)

    def _new_born(self) -> int:
        self._born += 1
        return self._born

    def _key_value(self, type_name: str) -> object:
        number = self._number()
        match type_name:
            case "int":
                return number
            case "numeric":
                return self._choose.choice((f"{number}", f"{number}.5", f"{number}.0", f"{number}.00"))
            case _:
                return self._choose.choice((f"k{number}", f"K{number}", f"k{number} "))

    def _key(self, table: RandomTable) -> list[object]:
        return [self._key_value(type_name) for _, type_name in table.key]

    def _big(self) -> str | None:
        return self._choose.choice((None, "short", f"{self._choose.random()}" * 180))

    def _unique(self) -> str | None:
        return self._choose.choice((None, f"u{self._number()}", f"u{self._choose.randint(1, 10_000)}", "k1"))

    def _rows(self, table: RandomTable, most: int) -> list[int]:
        """Rows of the table, by what they were born with."""
        nonce = str(self._choose.random())
        found = self._execute(f"SELECT born FROM {table.name} ORDER BY md5(born::text || %s) LIMIT %s", [nonce, most])
        return [born for (born,) in found]

    def _key_of(self, table: RandomTable, born: int) -> list[object]:
        found = self._execute(f"SELECT {', '.join(table.key_columns)} FROM {table.name} WHERE born = %s", [born])
        return list(found[0]) if found else self._key(table)

    def _referred(self, table: RandomTable, foreign_key: ForeignKey) -> list[object]:
        """Values for the columns of ``foreign_key``: of some row that is there, of none."""
        columns = ", ".join(foreign_key.referenced_columns)
        query = f"SELECT {columns} FROM {foreign_key.referenced} ORDER BY md5(born::text || %s) LIMIT 1"
        found = self._execute(query, [str(self._choose.random())]) if self._choose.random() < 0.85 else []
        return list(found[0]) if found else [None] * len(foreign_key.columns)

    def _foreign_keys(self, table: RandomTable) -> list[ForeignKey]:
        return [each for each in self._schema.foreign_keys if each.table == table.name]

    def _insert_row(self, table: RandomTable, key: Sequence[object]) -> None:
        values = dict(zip(table.key_columns, key, strict=True))
        values |= {"born": self._new_born(), "u": self._unique(), "v": self._number(), "big": self._big()}
        for foreign_key in self._foreign_keys(table):
            values |= dict(zip(foreign_key.columns, self._referred(table, foreign_key), strict=True))
        places = ", ".join(["%s"] * len(values))
        self._execute(f"INSERT INTO {table.name} ({', '.join(values)}) VALUES ({places})", list(values.values()))

    def _update(self, table: RandomTable, born: int, **values: object) -> None:
        sets = ", ".join(f"{column} = %s" for column in values)
        self._execute(f"UPDATE {table.name} SET {sets} WHERE born = %s", [*values.values(), born])

    def _set_key(self, table: RandomTable, born: int, key: Sequence[object]) -> None:
        self._update(table, born, **dict(zip(table.key_columns, key, strict=True)))

    def insert(self, table: RandomTable) -> None:
        for _ in range(self._choose.randint(1, 4)):
            self._insert_row(table, self._key(table))

    def update_value(self, table: RandomTable) -> None:
        for born in self._rows(table, 5):
            self._update(table, born, v=self._number())

    def update_unique(self, table: RandomTable) -> None:
        for born in self._rows(table, 1):
            self._update(table, born, u=self._unique())

    def update_big(self, table: RandomTable) -> None:
        for born in self._rows(table, 2):
            self._update(table, born, big=self._big(), v=self._number())

    def change_key(self, table: RandomTable) -> None:
        for born in self._rows(table, 1):
            self._set_key(table, born, self._key(table))

    def change_all_keys(self, table: RandomTable) -> None:
        """In one statement, there and back now and then."""
        column, type_name = table.key[0]
        moved = f"{column} || 'x'" if type_name == "text" else f"{column} + 100"
        back = f"regexp_replace({column}, 'x$', '')" if type_name == "text" else f"{column} - 100"
        is_away = f"{column} LIKE '%x'" if type_name == "text" else f"{column} > 100"
        if self._choose.random() < 0.6:
            self._execute(f"UPDATE {table.name} SET {column} = {back} WHERE {is_away}")
        else:
            self._execute(f"UPDATE {table.name} SET {column} = {moved} WHERE NOT {is_away}")

    def exchange_keys(self, table: RandomTable) -> None:
        """With the help of a third key."""
        rows = self._rows(table, 2)
        if len(rows) < 2:
            return
        first, second = (self._key_of(table, born) for born in rows)
        third = [900 if type_name != "text" else "third" for _, type_name in table.key]
        self._set_key(table, rows[0], third)
        self._set_key(table, rows[1], first)
        self._set_key(table, rows[0], second)

    def exchange_unique(self, table: RandomTable) -> None:
        """With the help of a third value."""
        rows = self._rows(table, 2)
        if len(rows) < 2:
            return
        values = [self._execute(f"SELECT u FROM {table.name} WHERE born = %s", [born]) for born in rows]
        if not all(values):
            return
        self._update(table, rows[0], u="third")
        self._update(table, rows[1], u=values[0][0][0])
        self._update(table, rows[0], u=values[1][0][0])

    def take_over(self, table: RandomTable) -> None:
        """A row's unique value goes to another one, which is new or not, in whatever order."""
        rows = self._rows(table, 2)
        if len(rows) < 2:
            return
        found = self._execute(f"SELECT u FROM {table.name} WHERE born = %s", [rows[0]])
        if self._choose.random() < 0.5:
            self._execute(f"DELETE FROM {table.name} WHERE born = %s", [rows[0]])
        else:
            self._update(table, rows[0], u=None)
        for (value,) in found:
            self._update(table, rows[1], u=value)

    def delete(self, table: RandomTable) -> None:
        for born in self._rows(table, self._choose.choice((1, 1, 4))):
            self._execute(f"DELETE FROM {table.name} WHERE born = %s", [born])

    def replace_row(self, table: RandomTable) -> None:
        """Another row of the same key."""
        for born in self._rows(table, 1):
            key = self._key_of(table, born)
            self._execute(f"DELETE FROM {table.name} WHERE born = %s", [born])
            self._insert_row(table, key)

    def come_and_go(self, table: RandomTable) -> None:
        self._insert_row(table, self._key(table))
        self._execute(f"DELETE FROM {table.name} WHERE born = %s", [self._born])

    def give_other_parents(self, table: RandomTable) -> None:
        for foreign_key in self._foreign_keys(table):
            for born in self._rows(table, 3):
                referred = self._referred(table, foreign_key)
                self._update(table, born, **dict(zip(foreign_key.columns, referred, strict=True)))

    def leave_a_parent(self, table: RandomTable) -> None:
        """All rows of one parent go to another one, then the parent goes, or takes another key."""
        for foreign_key in self._foreign_keys(table):
            before, after = self._referred(table, foreign_key), self._referred(table, foreign_key)
            theirs = _equal(foreign_key.columns)
            sets = ", ".join(f"{column} = %s" for column in foreign_key.columns)
            self._execute(f"UPDATE {table.name} SET {sets} WHERE {theirs}", [*after, *before])
            of_parent = _equal(foreign_key.referenced_columns)
            if self._choose.random() < 0.5:
                self._execute(f"DELETE FROM {foreign_key.referenced} WHERE {of_parent}", before)
            else:
                self._execute(f"UPDATE {foreign_key.referenced} SET v = 0, u = NULL WHERE {of_parent}", before)

    def truncate(self, table: RandomTable) -> None:
        self._execute(f"TRUNCATE {table.name} CASCADE")


def _equal(columns: Sequence[str]) -> str:
    return " AND ".join(f"{column} = %s" for column in columns)


_OF: dict[Callable[[SchemaLoad, RandomTable], None], int] = {
    SchemaLoad.insert: 30,
    SchemaLoad.update_value: 8,
    SchemaLoad.update_unique: 6,
    SchemaLoad.update_big: 6,
    SchemaLoad.change_key: 8,
    SchemaLoad.change_all_keys: 5,
    SchemaLoad.exchange_keys: 5,
    SchemaLoad.exchange_unique: 5,
    SchemaLoad.take_over: 5,
    SchemaLoad.delete: 8,
    SchemaLoad.replace_row: 6,
    SchemaLoad.come_and_go: 3,
    SchemaLoad.give_other_parents: 6,
    SchemaLoad.leave_a_parent: 5,
    SchemaLoad.truncate: 1,
}
_STATEMENTS, _WEIGHTS = list(_OF), list(_OF.values())
