"""All tables of a source, and whether a target holds the same rows: the text of all columns, in no order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from tests.servers import Database

Connection = psycopg.Connection[tuple[Any, ...]]

MARKER_SCHEMA = "postgres_suite"

# Partitions are compared as their root.
_TABLES = """
SELECT n.nspname::text, c.relname::text, c.relkind::text,
       ARRAY(SELECT attname::text FROM pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgsluice') AND n.nspname !~ '^pg_'
ORDER BY 1, 2
"""
# What the text of a value depends on.
_SETTINGS = """
SET DateStyle = 'ISO, MDY'; SET IntervalStyle = postgres; SET TimeZone = 'UTC'; SET bytea_output = hex;
SET extra_float_digits = 1; SET xmloption = content; SET lc_monetary = 'C'; SET search_path = ''; SET lock_timeout = '5s'
"""

Name = tuple[str, str]


class Contents:
    """A digest of each table of two databases. What was equal is not asked of the target again while the source's table stays
    as it is, until ``forget``."""

    def __init__(self, source: Database, target: Database) -> None:
        self._source, self._target = _session(source), _session(target)
        self._equal: dict[Name, str] = {}

    def close(self) -> None:
        self._source.close()
        self._target.close()

    def forget(self) -> None:
        self._equal = {}

    def left_over(self) -> set[Name]:
        """Tables of the target that the source does not have any more."""
        there, here = (connection.execute(_TABLES).fetchall() for connection in (self._target, self._source))
        return {(schema, table) for schema, table, *_ in there} - {(schema, table) for schema, table, *_ in here}

    def compared(self) -> tuple[int, dict[Name, str]]:
        """How many tables the source has, and those that differ, each with how."""
        tables = self._source.execute(_TABLES).fetchall()
        known, self._equal = self._equal, {}
        return len(tables), dict(self._differing(tables, known))

    def _differing(self, tables: list[tuple[Any, ...]], known: dict[Name, str]) -> Iterator[tuple[Name, str]]:
        for schema, table, kind, columns in tables:
            name = (schema, table)
            here = _digest(self._source, name, kind, columns)
            if known.get(name) != here:
                there = _digest(self._target, name, kind, columns)
                if here != there:
                    yield name, f"{here} at the source, {there} at the target"
                    continue
            self._equal[name] = here


def _session(database: Database) -> Connection:
    connection = database.connect()
    connection.execute(_SETTINGS)
    return connection


def _digest(connection: Connection, name: Name, kind: str, columns: list[str]) -> str:
    """How many rows, and a digest of them; or which error."""
    row = sql.SQL("ROW({})").format(sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(each)) for each in columns))
    query = sql.SQL(
        "SELECT count(*) || ' rows ' || left(md5(coalesce(string_agg(d, '' ORDER BY d COLLATE \"C\"), '')), 8)"
        " FROM (SELECT md5({}::text) AS d FROM {} {} AS t) AS r"
    ).format(row, sql.SQL("ONLY" if kind == "r" else ""), sql.Identifier(*name))
    try:
        found = connection.execute(query).fetchone()
    except psycopg.Error as error:
        return f"error {error.sqlstate}"
    assert found is not None
    return str(found[0])
