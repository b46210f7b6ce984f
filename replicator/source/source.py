"""The source database by an ordinary connection: whether it is fit to be replicated, and the partitions of its tables.

PostgreSQL publishes a partition's rows under its root, but not that a single partition was detached, dropped or
truncated: its rows stay at the targets. The rows that a table held when it was attached are not published either.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from pgsluice.replicator.source.connection import Connection, connect, notice_our_end, sql_error
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import LockTimeoutError, TerminalError
from pgsluice.shared.preflight.database import IDENTITY_QUERY, LOCALE_QUERY, DatabaseIdentity, DatabaseLocale
from pgsluice.shared.preflight.finding import Finding, Severity, Subject, raise_errors
from pgsluice.shared.preflight.provider import (
    ADMINISTRATORS,
    RDS_REPLICATION,
    Provider,
    provider_of,
    replication_cure,
    setting_cure,
)
from pgsluice.shared.process.retrying import Backoff, Pauses
from pgsluice.shared.wire.position import LSN, parse_lsn

# A table's system columns are written when it is created and never again; its row in pg_class changes often. No lock is
# taken, as by pg_partition_tree of every partition: another session can hold one for long.
_TREES: LiteralString = """
    WITH RECURSIVE tree (root, oid) AS (
        SELECT r.oid, r.oid FROM unnest(%s::oid[]) AS r (oid)
         UNION
        SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid WHERE NOT i.inhdetachpending)
    SELECT t.root::bigint, c.oid::bigint, n.nspname || '.' || c.relname AS name, i.xmin::text AS attached,
           i.xmin = (SELECT a.xmin FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tableoid') AS is_born
      FROM tree t
      JOIN pg_class c ON c.oid = t.oid
      JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_inherits i ON i.inhrelid = c.oid
     WHERE t.oid <> t.root
     ORDER BY n.nspname, c.relname
"""
MINIMUM_SERVER_VERSION = 14
LOCK_ATTEMPTS = 8
_PATIENCE_MS = 500  # a lock of another session on a partition does not delay its check for longer
log = telemetry.logger(__name__)
Row = TypeVar("Row")
_FACTS: LiteralString = """
    SELECT current_setting('server_version_num')::int / 10000 AS major_version,
           current_setting('wal_level') AS wal_level,
           pg_is_in_recovery() AS in_recovery,
           r.rolreplication OR r.rolsuper
               OR EXISTS (SELECT FROM pg_roles g WHERE g.rolname = %(replication)s AND pg_has_role(g.oid, 'MEMBER'))
               AS may_replicate,
           (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout') AS wal_sender_timeout_ms,
           current_setting('block_size')::int AS page_bytes,
           current_database()::text AS database,
           current_user::text AS user,
           version() AS version,
           ARRAY(SELECT a.rolname::text FROM pg_roles a WHERE a.rolname = ANY(%(administrators)s)) AS administrators
      FROM pg_roles r
     WHERE r.rolname = current_user
"""


_SYSTEM_ID: LiteralString = "SELECT system_identifier::text FROM pg_control_system()"


@dataclass(frozen=True, slots=True)
class TablePartition:
    """``attached`` is the transaction that made it a partition; ``is_born``: it also made the table, which was empty."""

    oid: int
    name: str
    attached: str
    is_born: bool


@dataclass(frozen=True, slots=True)
class _PartitionRow:
    root: int
    oid: int
    name: str
    attached: str
    is_born: bool


async def read_partitions(source: Source, roots: Collection[int]) -> dict[int, tuple[TablePartition, ...]]:
    """Returns every partition below each root, partitioned ones included; none of a root that is gone."""
    if not roots:
        return {}
    trees: defaultdict[int, list[TablePartition]] = defaultdict(list)
    for row in await source.rows_of(_PartitionRow, "looking up partitions", _TREES, [list(roots)]):
        trees[row.root].append(TablePartition(row.oid, row.name, row.attached, row.is_born))
    return {root: tuple(trees[root]) for root in roots}


async def retry_locked(act: Callable[[], Awaitable[None]], pauses: Pauses, event: str) -> None:
    """Calls ``act`` until it gets its locks, and logs ``event`` before each pause. Raises LockTimeoutError when none of
    LOCK_ATTEMPTS calls gets them."""
    backoff = Backoff(pauses)
    for _ in range(1, LOCK_ATTEMPTS):
        try:
            return await act()
        except LockTimeoutError as error:
            pause_s = backoff.next_pause_s()
            log.warning(event, reason=error.fact, pause_s=pause_s)
        await asyncio.sleep(pause_s)
    return await act()


async def hold_rows(source: Source, oids: Collection[int]) -> bool:
    """Returns whether one of these tables has pages, or is locked by another session now. The caller is the only user of the
    connection."""
    doing = "looking at partitions"
    try:
        async with source.transaction(doing):
            await source.execute(doing, sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_PATIENCE_MS)))
            query: LiteralString = "SELECT FROM unnest(%s::oid[]) o (oid) WHERE pg_relation_size(o.oid) > 0"
            return bool(await source.rows(doing, query, [list(oids)]))
    except LockTimeoutError:
        return True


def attached_partitions(before: Sequence[TablePartition], after: Sequence[TablePartition]) -> list[TablePartition]:
    """Returns the partitions of ``after`` that may have held rows, or had changes, that the targets did not receive."""
    earlier = {partition.oid: partition.attached for partition in before}
    return [each for each in after if earlier.get(each.oid) != each.attached and (each.oid in earlier or not each.is_born)]


def partition_changes(before: Sequence[TablePartition], after: Sequence[TablePartition]) -> list[str]:
    """Returns changes that the targets received no message about, each as the end of a sentence that begins with the
    root's name."""
    earlier = {partition.oid: partition for partition in before}
    current = {partition.oid for partition in after}
    changes = [
        f"partition {gone.name} was detached or dropped; its rows stay at the targets"
        for gone in before
        if gone.oid not in current
    ]
    for partition in after:
        known = earlier.get(partition.oid)
        if known is None and not partition.is_born:
            changes.append(f"table {partition.name} was attached; rows that it held before are missing at the targets")
        elif known is not None and known.attached != partition.attached:
            changes.append(f"partition {partition.name} was detached and attached again; its changes in between are missing")
    return changes


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Facts about the server for the start checks."""

    major_version: int
    wal_level: str
    in_recovery: bool
    may_replicate: bool
    wal_sender_timeout_ms: int
    page_bytes: int
    database: str
    user: str
    version: str
    administrators: list[str]

    @property
    def provider(self) -> Provider:
        return provider_of(self.administrators)

    @property
    def role(self) -> str:
        """The user as SQL writes it."""
        return sql.Identifier(self.user).as_string()


def fitness(facts: SourceFacts) -> list[Finding]:
    """Returns the obstacles to replication from this server with this role."""
    found = []
    if facts.in_recovery:
        fact = "the source is a standby"
        found.append(Finding("source-standby", Severity.ERROR, Subject.SOURCE, fact, "connect to the primary server"))
    if facts.wal_level != "logical":
        cure = setting_cure(facts.provider, "wal_level", "logical", restart=True)
        fact = f"wal_level of the source is {facts.wal_level!r}"
        wal_level = Finding("source-wal-level", Severity.ERROR, Subject.SOURCE, fact, cure.remedy, cure.statements, restart=True)
        found.append(wal_level)
    if not facts.may_replicate:
        cure = replication_cure(facts.provider, facts.role)
        fact = f"role {facts.user!r} may not replicate"
        found.append(Finding("source-replication-role", Severity.ERROR, Subject.SOURCE, fact, cure.remedy, cure.statements))
    return found


class Source:
    """One ordinary connection, for rare statements. Every method raises an error that names the failed action."""

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
        """The encoding of the database."""
        return self._connection.info.parameter_status("server_encoding") or ""

    @asynccontextmanager
    async def transaction(self, doing: str) -> AsyncIterator[None]:
        """Commits the statements of the block together, or rolls them back when it raises."""
        try:
            async with self._connection.transaction():
                yield
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    @asynccontextmanager
    async def one_moment(self, doing: str) -> AsyncIterator[None]:
        """Makes the queries of the block see one moment. No other task may use the connection."""
        async with self.transaction(doing):
            await self.execute(doing, sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").format())
            yield

    async def rows(self, doing: str, query: LiteralString, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Returns the rows. ``doing`` names the action in an error, like "reading the catalog"."""
        try:
            return await (await self._connection.execute(query, parameters)).fetchall()
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    async def rows_of(self, row: type[Row], doing: str, query: LiteralString, parameters: Any = ()) -> list[Row]:
        """Returns rows as objects of a dataclass whose fields are the query's columns."""
        try:
            async with self._connection.cursor(row_factory=class_row(row)) as cursor:
                return await (await cursor.execute(query, parameters)).fetchall()
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    async def notice_our_end(self) -> None:
        """Prepares the session for a statement that may take long: see ``connection.notice_our_end``."""
        await notice_our_end(self._connection)

    async def execute(self, doing: str, statement: sql.Composed) -> None:
        """Raises LockTimeoutError when ``lock_timeout`` was set and passed."""
        try:
            await self._connection.execute(statement)
        except psycopg.Error as error:
            raise sql_error(error, doing) from None

    async def facts(self) -> SourceFacts:
        """Raises TerminalError when the server is too old, or no PostgreSQL."""
        parameters = {"replication": RDS_REPLICATION, "administrators": list(ADMINISTRATORS)}
        [facts] = await self.rows_of(SourceFacts, "checking the source", _FACTS, parameters)
        if not facts.version.startswith("PostgreSQL ") or "-YB-" in facts.version:
            raise TerminalError(
                f"the source is not a PostgreSQL server: it reports that it is {facts.version.partition(' on ')[0]}",
                "it has neither PostgreSQL's WAL nor its slots; replicate from a PostgreSQL server",
            )
        if facts.major_version < MINIMUM_SERVER_VERSION:
            raise TerminalError(
                f"the source is PostgreSQL {facts.major_version}", f"PostgreSQL {MINIMUM_SERVER_VERSION} or later is needed"
            )
        return facts

    async def check(self) -> SourceFacts:
        """Raises TerminalError when nothing can be replicated from this server with this role."""
        facts = await self.facts()
        raise_errors(fitness(facts), "the source")
        return facts

    async def system_id(self) -> str:
        """Returns the server's identity, which copies of its data share."""
        [(system_id,)] = await self.rows("asking for the system identifier", _SYSTEM_ID)
        return str(system_id)

    async def identity(self) -> DatabaseIdentity:
        [(system_id, started, database)] = await self.rows("asking which server it is", IDENTITY_QUERY)
        return system_id, started, database

    async def locale(self) -> DatabaseLocale:
        [locale] = await self.rows_of(DatabaseLocale, "asking for the database's locale", LOCALE_QUERY)
        return locale

    async def current_lsn(self) -> LSN:
        """Returns an LSN after every commit that was finished before the call, which replication will reach even if
        nothing else happens: the LSN of an empty transaction's logical message (the position a server reports may lie
        on a page border that replication does not report)."""
        statement: LiteralString = "SELECT pg_logical_emit_message(true, 'pgsluice', '')::text"
        [(lsn,)] = await self.rows("asking for the current LSN", statement)
        return parse_lsn(lsn)
