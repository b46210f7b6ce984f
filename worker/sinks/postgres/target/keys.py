"""Keys of a target table: those that a table made from the source's has, and those that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.target.connection import Connection

_UNIQUE_KEYS = """
SELECT i.indrelid, ARRAY(SELECT a.attname FROM unnest(i.indkey[:i.indnkeyatts - 1]) AS k(attnum)
                         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum)
FROM pg_index i
WHERE i.indrelid = ANY (%s) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND NOT i.indisexclusion  -- a key WITHOUT OVERLAPS (PostgreSQL 18) is unique too, and no ON CONFLICT names it
"""


@dataclass(frozen=True, slots=True)
class Key:
    """A primary key, or a unique index on what identifies a row otherwise."""

    schema: str
    table: str
    columns: tuple[str, ...]
    is_primary: bool

    def definition(self) -> sql.Composed:
        """The statement that builds it."""
        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        statement = "ALTER TABLE {} ADD PRIMARY KEY ({})" if self.is_primary else "CREATE UNIQUE INDEX ON {} ({})"
        return sql.SQL(statement).format(sql.Identifier(self.schema, self.table), names)


def keys_of(table: Table) -> list[Key]:
    """The primary key, and the key that replication goes by when that is another."""
    positions = [(c.primary_key_position, i) for i, c in enumerate(table.columns) if c.primary_key_position is not None]
    primary_key = tuple(i for _, i in sorted(positions))
    keys = [_key(table, primary_key, is_primary=True)] if primary_key else []
    if table.key and set(table.key) != set(primary_key):
        keys.append(_key(table, table.key, is_primary=False))
    return keys


def unique_keys(connection: Connection, oids: Sequence[int]) -> dict[int, list[set[str]]]:
    """By table, the columns of each of its unique indexes that ON CONFLICT can use. Tables without one are left out."""
    found: dict[int, list[set[str]]] = {}
    for oid, columns in connection.execute(_UNIQUE_KEYS, [list(oids)]).fetchall():
        found.setdefault(oid, []).append(set(columns))
    return found


def _key(table: Table, columns: tuple[int, ...], *, is_primary: bool) -> Key:
    return Key(table.schema, table.name, tuple(table.columns[i].name for i in columns), is_primary)
