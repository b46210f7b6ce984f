"""Databases that are used again: to empty one costs the server a third of what it costs to make one and to drop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from tests.servers.postgres import Connection, Database, PostgresServer

_END_SESSIONS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# From oid 16384 on, objects are not the server's own (FirstNormalObjectId in src/include/access/transam.h). Schemas of temporary
# tables stay when their session has ended, empty.
_MADE_SCHEMA = "oid >= 16384 AND nspname !~ '^pg_(toast_)?temp_'"
_SCHEMAS = f"SELECT oid, nspname FROM pg_namespace WHERE ({_MADE_SCHEMA}) OR nspname = 'public'"
_TABLES = """
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p') AND n.oid = ANY (%s)
"""
_NEW_PUBLIC_SCHEMA = "CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC"
_CATALOGS = """
SELECT relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'oid'
WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r' AND NOT c.relisshared AND c.relname <> 'pg_namespace'
"""
# A row that is written anew, by whatever ALTER, has another xmin.
_OBJECTS = [
    f"SELECT 'pg_namespace', oid, 0, xmin::text FROM pg_namespace WHERE {_MADE_SCHEMA} AND nspname <> 'public'",
    "SELECT 'pg_attribute', attrelid, attnum, xmin::text FROM pg_attribute WHERE attrelid >= 16384",
]
_OBJECTS_OF_CATALOG = "SELECT '{0}', oid, 0, xmin::text FROM {0} WHERE oid >= 16384"
_IS_OTHERWISE_AS_NEW = """
SELECT (datdba, datacl IS NULL, datallowconn, datconnlimit) IS NOT DISTINCT FROM (10::oid, true, true, -1)
    AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = pg_database.oid)
    AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE database = datname)
    AND NOT EXISTS (SELECT FROM pg_subscription WHERE subdbid = pg_database.oid)
FROM pg_database WHERE datname = current_database()
"""

Objects = frozenset[tuple[Any, ...]]


class DatabasePool:
    """Databases of one server that hold nothing but what ``prepare`` makes, in schemas of its own.

    Whoever takes one gets it under a name that it never had: what is known by name (a session that is kept, a role) is not taken
    for the next one's. One that is given back loses its sessions, all rows, and what was made in it; then its objects must be
    those that it had at first, none altered. Any other database is dropped.
    """

    def __init__(self, server: PostgresServer, prepare: Callable[[Connection], None]) -> None:
        self._server = server
        self._prepare = prepare
        self._connection: Connection | None = None
        self._free: list[str] = []
        self._at_first: dict[str, Objects] = {}
        self._objects = b""

    def take(self, name: str) -> Database:
        if not self._free:
            database = self._server.create_database(name)
            with database.connect() as connection:
                self._prepare(connection)
                self._at_first[name] = self._objects_of(connection)
            return database
        before = self._free.pop()
        self._at_first[name] = self._at_first.pop(before)
        self._connection = self._connection or self._server.connect()
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        self._connection.execute(rename.format(sql.Identifier(before), sql.Identifier(name)))
        return Database(self._server, name)

    def give_back(self, database: Database) -> None:
        try:
            is_as_at_first = self._empty(database)
        except psycopg.Error:  # it cannot be reached, or has more tables than can be dropped at once
            is_as_at_first = False
        if is_as_at_first:
            self._free.append(database.dbname)
        else:
            del self._at_first[database.dbname]
            database.drop()

    def close(self) -> None:
        """The databases go with their server."""
        if self._connection is not None:
            self._connection.close()

    def _empty(self, database: Database) -> bool:
        """Whether the database is as it was at first."""
        database.server.close_session(database.dbname)
        at_first = self._at_first[database.dbname]
        kept = {oid for _, oid, _, _ in at_first}
        with database.connect() as connection:
            connection.execute(_END_SESSIONS)
            schemas = connection.execute(_SCHEMAS).fetchall()
            tables = connection.execute(_TABLES, [[oid for oid, _ in schemas if oid in kept]]).fetchall()
            statements: list[sql.Composable] = [sql.SQL("SET session_replication_role = replica")]
            for oid, *names in tables:
                statement = "DELETE FROM {}" if oid in kept else "DROP TABLE IF EXISTS {} CASCADE"
                statements.append(sql.SQL(statement).format(sql.Identifier(*names)))
            made = sql.SQL(", ").join(sql.Identifier(name) for oid, name in schemas if oid not in kept)
            statements += [sql.SQL("DROP SCHEMA {} CASCADE").format(made), sql.SQL(_NEW_PUBLIC_SCHEMA)]
            connection.execute(sql.SQL("; ").join(statements))
            is_otherwise_as_new = connection.execute(_IS_OTHERWISE_AS_NEW).fetchone() == (True,)
            return is_otherwise_as_new and self._objects_of(connection) == at_first

    def _objects_of(self, connection: Connection) -> Objects:
        """The database's own, but for schema public, each with the transaction that wrote it last."""
        if not self._objects:
            catalogs = [name for (name,) in connection.execute(_CATALOGS).fetchall()]
            self._objects = " UNION ALL ".join([*_OBJECTS, *map(_OBJECTS_OF_CATALOG.format, catalogs)]).encode()
        return frozenset(connection.execute(self._objects).fetchall())
