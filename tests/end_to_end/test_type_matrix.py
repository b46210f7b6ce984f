"""A value of any type arrives as it was, whether it was copied, inserted, updated, or was what a change looked for."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.end_to_end.type_matrix import BUILT_IN, EXTENSIONS, MADE, MADE_TYPES, WITHOUT_INPUT, definition, rows
from tests.servers import Database, NatsServer

MISSING_AT_TARGET = "CREATE TYPE public.only_here AS ENUM ('it''s', 'b'); CREATE TYPE public.only_pair AS (a text, b integer);"
MISSING = {"public.only_here": ["it's", "b"], "public.only_pair": ['("a, b",1)', "(,)"]}


def available(database: Database) -> dict[str, list[str]]:
    """Types of those extensions that the server has."""
    present = {name for (name,) in database.execute("SELECT name FROM pg_available_extensions")}
    return {name: values for extension in EXTENSIONS.keys() & present for name, values in EXTENSIONS[extension].items()}


def make_types(database: Database) -> None:
    present = {name for (name,) in database.execute("SELECT name FROM pg_available_extensions")}
    for extension in sorted(EXTENSIONS.keys() & present):
        database.execute(f"CREATE EXTENSION {extension} SCHEMA public")
    database.execute(MADE_TYPES)


def built_in(database: Database) -> dict[str, list[str]]:
    """``BUILT_IN`` as far as the server was built for it."""
    try:
        database.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return {name: values for name, values in BUILT_IN.items() if name != "xml"}
    return BUILT_IN


def insert(database: Database, table: str, types: dict[str, list[str]], first_id: int) -> None:
    with database.connect() as connection:
        for number, row in enumerate(rows(types), first_id):
            connection.execute(sql.SQL("INSERT INTO {} VALUES ({}, {})").format(sql.Identifier(table), number, row))


def contents(database: Database, table: str) -> list[str]:
    return [row[0] for row in database.execute(f"SELECT t::text FROM {table} t ORDER BY id, t::text")]


def column_types(database: Database, table: str) -> set[tuple[int, str]]:
    columns = "SELECT attnum, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    return {(number, name) for number, name in database.execute(columns, [table])}


def test_every_built_in_type_has_values_to_try(source_database: Database) -> None:
    tried = {row[0] for name in BUILT_IN for row in source_database.execute("SELECT %s::regtype::text", [name])}
    built_in = source_database.execute(
        "SELECT oid::regtype::text FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm')"
        " AND typcategory <> 'A'"
    )
    assert {name for (name,) in built_in} - tried - WITHOUT_INPUT == set()


@pytest.mark.timeout(300)
def test_every_type_is_equal_by_its_text_after_copy_insert_update_and_delete(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server, **{"copy-and-stream": True})
    types = built_in(source_database) | MADE | available(source_database)
    tables = {"keyed": (types | MISSING, "PRIMARY KEY"), "keyless": (types | MISSING, "")}
    make_types(source_database)
    make_types(target_database)
    source_database.execute(MISSING_AT_TARGET)
    for table, (kinds, key) in tables.items():
        source_database.execute(definition(table, kinds, key))
        insert(source_database, table, kinds, 0)
    source_database.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    succeed(replicate(keys))
    for table, (kinds, _) in tables.items():
        insert(source_database, table, kinds, 100)
        columns = ", ".join(f"c{n}, a{n}" for n in range(len(kinds)))
        source_database.execute(
            f"UPDATE {table} t SET ({columns}) = (SELECT {columns} FROM {table} o WHERE o.id = t.id - 1)"
            " WHERE t.id IN (2, 4, 102, 104)"
        )
        source_database.execute(f"DELETE FROM {table} WHERE id IN (0, 3, 100, 103)")
    succeed(replicate(keys))
    succeed(apply(keys))
    for table, (kinds, _) in tables.items():
        expected = contents(source_database, table)
        assert len(expected) > max(map(len, kinds.values()))
        assert contents(target_database, table) == expected
        different = column_types(source_database, table) ^ column_types(target_database, table)
        assert {name for _, name in different} == {"only_here", "only_here[]", "only_pair", "only_pair[]", "text"}
