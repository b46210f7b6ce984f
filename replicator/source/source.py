"""The source database by an ordinary connection, and whether it is fit to be replicated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from pgsluice.replicator.source.connection import Connection, connect, notice_our_end, sql_error
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import LockTimeoutError, TerminalError
from pgsluice.shared.wire.lsn import LSN, parse_lsn

MINIMUM_SERVER_VERSION = 14

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What the start checks need to know of the server."""

    major_version: int
    wal_level: str
    in_recovery: bool
    may_replicate: bool
    wal_sender_timeout_ms: int
    page_bytes: int
    database: str
    user: str


_FACTS: LiteralString = """
    SELECT current_setting('server_version_num')::int / 10000 AS major_version,
           current_setting('wal_level') AS wal_level,
           pg_is_in_recovery() AS in_recovery,
           r.rolreplication OR r.rolsuper AS may_replicate,
           (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout') AS wal_sender_timeout_ms,
           current_setting('block_size')::int AS page_bytes,
           current_database()::text AS database,
           current_user::text AS user
      FROM pg_roles r
     WHERE r.rolname = current_user
"""


class Source:
    """One ordinary connection, for rare questions. Every method raises an error that says what failed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, settings: PostgresSettings) -> Self:
        """Raises as ``connection.connect`` does."""
        return cls(await connect(settings))

    async def close(self) -> None:
        await self._connection.close()

    @property
    def major_version(self) -> int:
        return self._connection.info.server_version // 10000

    @property
    def encoding(self) -> str:
        """Of the database."""
        return self._connection.info.parameter_status("server_encoding") or ""

    @asynccontextmanager
    async def transaction(self, doing: str) -> AsyncIterator[None]:
        """What is executed meanwhile is committed together, or rolled back when the block raises."""
        try:
            async with self._connection.transaction():
                yield
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    async def rows(self, doing: str, query: LiteralString, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """``doing`` says in an error what was being done, like "reading the catalog"."""
        try:
            return await (await self._connection.execute(query, parameters)).fetchall()
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    async def rows_of(self, row: type[Row], doing: str, query: LiteralString, parameters: Any = ()) -> list[Row]:
        """Rows as objects of a dataclass whose fields are the query's columns."""
        try:
            async with self._connection.cursor(row_factory=class_row(row)) as cursor:
                return await (await cursor.execute(query, parameters)).fetchall()
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    async def notice_our_end(self) -> None:
        """Before a statement that may take long: see ``connection.notice_our_end``."""
        await notice_our_end(self._connection)

    async def execute(self, doing: str, statement: sql.Composed) -> None:
        """Raises LockTimeoutError when ``lock_timeout`` was set and passed."""
        try:
            await self._connection.execute(statement)
        except psycopg.errors.LockNotAvailable as error:
            raise LockTimeoutError(f"{doing} failed: {error.diag.message_primary}", "it is tried again") from None
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    async def facts(self) -> SourceFacts:
        """Raises TerminalError when the server is too old."""
        [facts] = await self.rows_of(SourceFacts, "checking the source", _FACTS)
        if facts.major_version < MINIMUM_SERVER_VERSION:
            raise TerminalError(
                f"the source is PostgreSQL {facts.major_version}", f"PostgreSQL {MINIMUM_SERVER_VERSION} or later is needed"
            )
        return facts

    async def check(self) -> SourceFacts:
        """Raises TerminalError when nothing can be replicated from this server with this role."""
        facts = await self.facts()
        if facts.in_recovery:
            raise TerminalError("the source is a standby", "connect to the primary server")
        if facts.wal_level != "logical":
            raise TerminalError(
                f"wal_level of the source is {facts.wal_level!r}",
                "ALTER SYSTEM SET wal_level = 'logical' and restart the server",
            )
        if not facts.may_replicate:
            raise TerminalError(f"role {facts.user!r} may not replicate", f'ALTER ROLE "{facts.user}" REPLICATION')
        return facts

    async def current_lsn(self) -> LSN:
        """An LSN after every commit that was finished before the call, which replication will reach even if nothing else
        happens: that of an empty transaction's logical message (the position a server reports may lie on a page border that
        replication does not report)."""
        statement: LiteralString = "SELECT pg_logical_emit_message(true, 'pgsluice', '')::text"
        [(lsn,)] = await self.rows("asking for the current LSN", statement)
        return parse_lsn(lsn)
