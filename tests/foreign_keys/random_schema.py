"""Random tables that refer to each other, and the SQL that makes them.

Every table has a key of one of KEY_TYPES or of two columns, ``born`` (a number that the row keeps as long as it lives), ``u``
(unique in some), ``v``, and ``big`` (a value that is stored outside of the row). A foreign key refers to the key of a table, its
own too, or to ``u``. Tables that come later may be referred to, so there are circles.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

KEY_TYPES = ("int", "numeric", "text")
ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")
DEFERRABILITIES = ("NOT DEFERRABLE", "DEFERRABLE INITIALLY IMMEDIATE", "DEFERRABLE INITIALLY DEFERRED")
COUNTERS = ("counter_a", "counter_z")
"""Each transaction adds one to both, so whoever sees the tables as a commit left them sees the same number twice."""


@dataclass(frozen=True)
class ForeignKey:
    name: str
    table: str
    columns: Sequence[str]
    referenced: str
    referenced_columns: Sequence[str]
    on_delete: str
    on_update: str
    deferrability: str

    def statement(self) -> str:
        return (
            f"ALTER TABLE {self.table} ADD CONSTRAINT {self.name} FOREIGN KEY ({', '.join(self.columns)})"
            f" REFERENCES {self.referenced} ({', '.join(self.referenced_columns)})"
            f" ON DELETE {self.on_delete} ON UPDATE {self.on_update} {self.deferrability}"
        )

    def acting_otherwise(self, choose: random.Random) -> ForeignKey:
        """The same with other actions and another deferrability."""
        actions = {"on_delete": choose.choice(ACTIONS), "on_update": choose.choice(ACTIONS)}
        return replace(self, **actions, deferrability=choose.choice(DEFERRABILITIES))


@dataclass(frozen=True)
class RandomTable:
    """``key`` and ``references`` are columns with their types, ``default`` what the references have when nothing is said."""

    name: str
    key: Sequence[tuple[str, str]]
    references: Sequence[tuple[str, str]]
    unique: str
    """The constraint of ``u``, "" without any."""
    is_full: bool
    """Whether the replica identity is."""

    @property
    def columns(self) -> list[str]:
        return [name for name, _ in (*self.key, *self.references)] + ["born", "u", "v", "big"]

    @property
    def key_columns(self) -> list[str]:
        return [name for name, _ in self.key]

    def statement(self, more: str = "") -> str:
        keys = [f"{name} {type_name}" for name, type_name in self.key]
        references = [f"{name} {type_name} DEFAULT {DEFAULTS[type_name]}" for name, type_name in self.references]
        others = ["born bigint NOT NULL", f"u text {self.unique}", "v int", "big text"]
        listed = ", ".join([*keys, *references, *others])
        return (
            f"CREATE TABLE {self.name} ({listed}{more}, PRIMARY KEY ({', '.join(self.key_columns)}));"
            f" ALTER TABLE {self.name} ALTER big SET STORAGE EXTERNAL"
        )


DEFAULTS = {"int": "1", "numeric": "1", "text": "'k1'"}
"""Of columns that refer: the row is there now and then."""


@dataclass(frozen=True)
class RandomSchema:
    tables: Sequence[RandomTable]
    foreign_keys: Sequence[ForeignKey]

    @classmethod
    def of(cls, choose: random.Random) -> RandomSchema:
        bare = [_table(f"t{number}", choose) for number in range(1, choose.randint(2, 6) + 1)]
        tables, foreign_keys = [], []
        for table in bare:
            references: list[tuple[str, str]] = []
            for number in range(choose.choice((0, 1, 1, 2))):
                foreign_key, columns = _foreign_key(f"{table.name}_f{number}", table, choose.choice(bare), choose)
                foreign_keys.append(foreign_key)
                references += columns
            tables.append(replace(table, references=references))
        return cls(tables, foreign_keys)

    def statements(self) -> str:
        """Makes it at the source."""
        identities = [f"ALTER TABLE {table.name} REPLICA IDENTITY FULL" for table in self.tables if table.is_full]
        made = [table.statement() for table in self.tables]
        return "; ".join([*made, *identities, *COUNTER_STATEMENTS, *(each.statement() for each in self.foreign_keys)])

    def checksums_query(self) -> str:
        """Both counters, then a number for each table that depends on all of its rows, in one row."""
        sums = [
            f"(SELECT count(*)::text || ':' || coalesce(sum(hashtextextended(row({', '.join(table.columns)})::text, 0)), 0)::text"
            f" FROM {table.name})"
            for table in self.tables
        ]
        return "SELECT " + ", ".join([*(f"(SELECT n FROM {counter})" for counter in COUNTERS), *sums])

    def different(self, expected: Sequence[str], seen: Sequence[str]) -> str:
        """In words, of two rows of ``checksums_query``."""
        names = [*COUNTERS, *(table.name for table in self.tables)]
        differ = [name for name, at_source, at_target in zip(names, expected, seen, strict=True) if at_source != at_target]
        return f"the target holds other rows of {', '.join(differ)}"


COUNTER_STATEMENTS = [f"CREATE TABLE {counter} (id int PRIMARY KEY, n bigint NOT NULL)" for counter in COUNTERS]


def _table(name: str, choose: random.Random) -> RandomTable:
    if choose.random() < 0.25:
        key = [("k1", "int"), ("k2", "text")]
    else:
        key = [("k", choose.choice(KEY_TYPES))]
    unique = choose.choice(("", "UNIQUE", "UNIQUE", "UNIQUE DEFERRABLE INITIALLY DEFERRED"))
    return RandomTable(name, key, [], unique, is_full=choose.random() < 0.15)


def _foreign_key(
    name: str, table: RandomTable, referenced: RandomTable, choose: random.Random
) -> tuple[ForeignKey, list[tuple[str, str]]]:
    to_unique = referenced.unique == "UNIQUE" and choose.random() < 0.25
    target = [("u", "text")] if to_unique else list(referenced.key)
    columns = [(f"{name.removeprefix(table.name + '_')}_{column}", type_name) for column, type_name in target]
    actions = {"on_delete": choose.choice(ACTIONS), "on_update": choose.choice(ACTIONS)}
    foreign_key = ForeignKey(
        name,
        table.name,
        [column for column, _ in columns],
        referenced.name,
        [column for column, _ in target],
        **actions,
        deferrability=choose.choice(DEFERRABILITIES),
    )
    return foreign_key, columns
