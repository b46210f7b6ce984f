"""The publication in the source's catalog: found, made, altered, and compared with what a group wants of it.

Partitions are published under their root, so a target sees one table. The comment of a publication that we made holds the
group's own spelling: ``a-b`` and ``a_b`` have the same publication name, and the second of them is refused. A publication
without our comment is an administrator's: it is taken as it is, or refused with the statement that would make it fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import sql

from pgsluice.replicator.source.catalog import published_oids
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import SourceTable, check_publisher
from pgsluice.shared import telemetry
from pgsluice.shared.errors import START_AGAIN, LockTimeoutError, TerminalError, UsageError
from pgsluice.shared.process.retrying import Backoff, Pauses
from pgsluice.shared.wire.names import SOURCE_SCHEMA, GroupNames

OPERATIONS = ("insert", "update", "delete", "truncate")

SCHEMAS_SINCE = 15
"""Row filters, column lists and whole schemas came with PostgreSQL 15."""

LOCK_TIMEOUT_MS = 500  # for as long, writers of a table wait for us
TURN_TIMEOUT_MS = 2500  # for as long, nobody who writes does; an autovacuum gives way after a second (``deadlock_timeout``)
LOCK_ATTEMPTS = 8

_COMMENT_PREFIX = "pgsluice group "

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that the publication names or covers. ``xmin`` is the transaction that wrote the catalog's row of it, "" when there
    is none: a table that was taken out and in again has another. ``row_filter`` and ``columns`` are "" without; the filter is a
    hash, because to tell a filter the server locks its table."""

    oid: int
    schema: str
    name: str
    kind: str
    xmin: str
    row_filter: str
    columns: str

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class _Row:
    oid: int
    xmin: str
    lsn: str
    operations: list[str]
    all_tables: bool
    schemas: int
    via_partition_root: bool
    comment: str | None


@dataclass(frozen=True, slots=True)
class Publication:
    """What the catalog holds. ``oid`` identifies it: one that was dropped and made again has another. ``xmin`` is the transaction
    that altered its operations, options or owner last, ``lsn`` is where the source was before this was read. ``covers_more``: it
    is of all tables, or of all tables of a schema."""

    name: str
    oid: int
    xmin: str
    lsn: str
    operations: tuple[str, ...]
    covers_more: bool
    via_partition_root: bool
    comment: str | None
    tables: tuple[PublishedTable, ...]

    @property
    def oids(self) -> frozenset[int]:
        return frozenset(table.oid for table in self.tables)

    def is_made_by(self, names: GroupNames) -> bool:
        return not names.chosen_publication and self.comment == _COMMENT_PREFIX + names.group


_PUBLICATION: LiteralString = """
    SELECT p.oid::bigint, p.xmin::text,
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text AS lsn,
           array_remove(ARRAY[CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
                              CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END],
                        NULL) AS operations,
           p.puballtables AS all_tables, {schemas}::int AS schemas, p.pubviaroot AS via_partition_root,
           obj_description(p.oid, 'pg_publication') AS comment
      FROM pg_publication p
     WHERE p.pubname = %s
"""

_NAMED: LiteralString = """
    SELECT c.oid::bigint, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind, r.xmin::text,
           {row_filter} AS row_filter, coalesce(to_jsonb(r) ->> 'prattrs', '') AS columns
      FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE r.prpubid = %s
"""

_COVERED: LiteralString = """
    SELECT c.oid::bigint, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
           {xmin} AS xmin, '' AS row_filter, '' AS columns
      FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE p.oid = %s AND c.oid = ANY(%s::oid[]) AND NOT (n.nspname = '{own}' AND starts_with(c.relname, 'token_'))
"""
"""Without the tables of captured definitions, whose rows are never sent (``replicator.definitions.installation``)."""

_DOING = "looking up the publication"


async def find_publication(source: Source, names: GroupNames) -> Publication | None:
    is_new = source.major_version >= SCHEMAS_SINCE
    schemas = "(SELECT count(*) FROM pg_publication_namespace WHERE pnpubid = p.oid)" if is_new else "0"
    found = await source.rows_of(_Row, _DOING, _PUBLICATION.format(schemas=schemas), [names.publication])
    if not found:
        return None
    [row] = found
    row_filter = "coalesce(md5(r.prqual::text), '')" if is_new else "''"
    tables = {table.oid: table for table in await _tables(source, _NAMED.format(row_filter=row_filter), [row.oid])}
    if row.all_tables or row.schemas:
        xmin = "coalesce((SELECT s.xmin::text FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid), '')"
        query = _COVERED.format(xmin=xmin if is_new else "''", own=SOURCE_SCHEMA)
        covered = await _tables(source, query, [row.oid, await published_oids(source, names)])
        tables = {table.oid: table for table in covered} | tables
    return Publication(
        name=names.publication,
        oid=row.oid,
        xmin=row.xmin,
        lsn=row.lsn,
        operations=tuple(row.operations),
        covers_more=bool(row.all_tables or row.schemas),
        via_partition_root=row.via_partition_root,
        comment=row.comment,
        tables=tuple(sorted(tables.values(), key=lambda table: (table.schema, table.name))),
    )


async def _tables(source: Source, query: LiteralString, parameters: list[Any]) -> list[PublishedTable]:
    return await source.rows_of(PublishedTable, _DOING, query, parameters)


def check_owner(publication: Publication, names: GroupNames) -> None:
    """Raises UsageError when another group made it."""
    comment = publication.comment or ""
    if comment.startswith(_COMMENT_PREFIX) and comment != _COMMENT_PREFIX + names.group:
        other = comment.removeprefix(_COMMENT_PREFIX)
        if names.chosen_publication:
            raise UsageError(f"publication {names.publication} belongs to group {other!r}", "give one that no group made")
        raise UsageError(
            f"publication {names.publication} belongs to group {other!r}, which differs from {names.group!r} in '-' and '_' only",
            "choose another group name",
        )


def check_identity(publication: Publication, oid: int) -> None:
    """Raises TerminalError when it is not the one that had ``oid``."""
    if publication.oid != oid:
        raise TerminalError(
            f"publication {publication.name} was dropped and made again: changes in between were not published", START_AGAIN
        )


def check_extent(publication: Publication) -> None:
    """Raises TerminalError when one that we made is of whole schemas now."""
    if publication.covers_more:
        raise TerminalError(
            f"somebody added whole schemas to publication {publication.name}",
            f"take them out (ALTER PUBLICATION {publication.name} DROP TABLES IN SCHEMA …), then start again; 'tables' says what"
            " to replicate",
        )


def gone(names: GroupNames) -> TerminalError:
    return TerminalError(f"publication {names.publication} was dropped while the slot needs it", START_AGAIN)


def check_fit(publication: Publication, tables: Sequence[SourceTable], operations: Collection[str]) -> None:
    """Raises TerminalError, with the statements for its owner, when an administrator's publication is not what the group wants.

    Partitions that are named beside their root are published under it, and not missed.
    """
    name = sql.Identifier(publication.name)
    differences, statements = [], []
    wanted = {table.oid for table in tables}
    if missing := [table for table in tables if table.oid not in publication.oids]:
        differences.append(f"does not publish {_listed(missing)}")
        statements.append(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, _table_list(missing)))
    if more := [table for table in publication.tables if table.oid not in wanted]:
        differences.append(f"publishes {_listed(more)}, which tables does not name")
        statements.append(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(name, _table_list(more)))
    if set(publication.operations) != set(operations):
        differences.append(f"publishes {', '.join(publication.operations) or 'no operation'} instead of {', '.join(operations)}")
        statements.append(sql.SQL("ALTER PUBLICATION {} SET (publish = {})").format(name, sql.Literal(", ".join(operations))))
    if not publication.via_partition_root and any(table.kind == "p" for table in tables):
        differences.append("publishes partitions under their own names")
        statements.append(sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)").format(name))
    if differences:
        raise TerminalError(
            f"publication {publication.name}, which an administrator made, {' and '.join(differences)}",
            f"let its owner say: {'; '.join(statement.as_string() for statement in statements)}",
            statements=[statement.as_string() for statement in statements],
        )


def _listed(tables: Sequence[SourceTable | PublishedTable]) -> str:
    shown = ", ".join(table.qualified_name for table in tables[:10])
    return shown if len(tables) <= 10 else f"{shown} and {len(tables) - 10} more"


def creation(names: GroupNames, tables: Sequence[SourceTable], operations: Collection[str]) -> sql.Composed:
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = {}, publish_via_partition_root = true)").format(
        sql.Identifier(names.publication), _table_list(tables), sql.Literal(", ".join(operations))
    )


async def check_creation(source: Source, names: GroupNames, tables: Sequence[SourceTable], operations: Collection[str]) -> None:
    """Raises TerminalError when the role lacks what making the group's own publication takes."""
    try:
        await check_publisher(source, tables, creates=True)
    except TerminalError as error:
        statement = creation(names, tables, operations).as_string()
        alone = f"an administrator's own publication takes none of them: {statement}"
        fact = f"{error.fact} ({alone})" if len(tables) <= 10 else error.fact
        raise TerminalError(fact, error.remedy, statements=error.statements) from None


async def create_publication(
    source: Source, names: GroupNames, tables: Sequence[SourceTable], operations: Collection[str]
) -> Publication:
    """To be called before there is a slot: its creation waits for the transactions that do not know the publication yet."""
    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(names.publication), sql.Literal(_COMMENT_PREFIX + names.group)
    )
    await check_creation(source, names, tables, operations)
    statement = creation(names, tables, operations)
    async with source.transaction(f"creating publication {names.publication}"):
        await source.execute(f"creating publication {names.publication}", statement)
        await source.execute(f"naming the group of publication {names.publication}", comment)
    made = await find_publication(source, names)
    if made is None:
        raise TerminalError(f"publication {names.publication} disappeared while it was made", "start again")
    return made


@dataclass(frozen=True, slots=True)
class Alteration:
    """What turns our publication into the one that is wanted. ``locked`` are the tables of which decoding may know it as it is
    now: those that join, and all of them when its options change."""

    joining: list[SourceTable]
    leaving: list[PublishedTable]
    operations: tuple[str, ...] | None
    locked: list[SourceTable]

    @classmethod
    def between(
        cls, publication: Publication, tables: Sequence[SourceTable], operations: Collection[str], *, is_decoded: bool
    ) -> Alteration:
        """``is_decoded``: there is a slot."""
        wanted = {table.oid for table in tables}
        joining = [table for table in tables if table.oid not in publication.oids]
        is_same = set(publication.operations) == set(operations) and publication.via_partition_root
        return cls(
            joining,
            [table for table in publication.tables if table.oid not in wanted],
            None if is_same else tuple(operations),
            [] if not is_decoded else joining if is_same else list(tables),
        )

    @property
    def concerned(self) -> list[SourceTable | PublishedTable]:
        return [*(self.locked or self.joining), *self.leaving]

    def __bool__(self) -> bool:
        return bool(self.joining or self.leaving or self.operations is not None)

    def statements(self, name: sql.Identifier) -> list[sql.Composed]:
        """Tables that stay are not named: their row filters and column lists are left as they are."""
        made = []
        if self.operations is not None:
            options = sql.SQL("ALTER PUBLICATION {} SET (publish = {}, publish_via_partition_root = true)")
            made.append(options.format(name, sql.Literal(", ".join(self.operations))))
        if self.joining:
            made.append(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, _table_list(self.joining)))
        if self.leaving:
            made.append(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(name, _table_list(self.leaving)))
        return made


async def alter_publication(
    source: Source, names: GroupNames, alteration: Alteration, note: Callable[[str], Awaitable[None]], pauses: Pauses
) -> None:
    """Alters it when no transaction that has written to the locked tables is open: decoding, on servers older than spring 2025,
    goes on with what such a transaction knew of the publication, and leaves out its later changes.

    ``note`` gets the transaction's id before anything is altered, each time that it is tried. A table is locked for moments:
    first so that it may be written to, for which autovacuum gives way; then an application waits, for LOCK_TIMEOUT_MS at most.
    Raises TransientError when a table was never free.
    """
    await check_publisher(source, alteration.joining, creates=False)
    backoff = Backoff(pauses)
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            await _alter_once(source, names, alteration, note)
            return
        except LockTimeoutError as error:
            if attempt == LOCK_ATTEMPTS:
                raise
            pause_s = backoff.next_pause_s()
            log.warning("a table that joins or leaves is in use, trying again", reason=error.fact, pause_s=pause_s)
            await asyncio.sleep(pause_s)


async def _alter_once(source: Source, names: GroupNames, alteration: Alteration, note: Callable[[str], Awaitable[None]]) -> None:
    doing = f"changing publication {names.publication}"
    statements = alteration.statements(sql.Identifier(names.publication))
    async with source.transaction(doing):
        [(xid,)] = await source.rows(doing, "SELECT pg_current_xact_id()::xid::text")
        await note(xid)
        await _lock(source, doing, alteration.concerned, "SHARE UPDATE EXCLUSIVE", TURN_TIMEOUT_MS)
        await _lock(source, doing, alteration.locked, "SHARE ROW EXCLUSIVE", LOCK_TIMEOUT_MS)
        for statement in statements:
            try:
                await source.execute(doing, statement)
            except TerminalError as error:
                raise TerminalError(error.fact, f"{error.remedy}: {statement.as_string()}") from None


async def _lock(
    source: Source, doing: str, tables: Sequence[SourceTable | PublishedTable], mode: LiteralString, timeout_ms: int
) -> None:
    """For the transaction. Raises LockTimeoutError."""
    if tables:
        await source.execute(doing, sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(timeout_ms)))
        statement = sql.SQL("LOCK TABLE {} IN {} MODE").format(_lock_list(tables), sql.SQL(mode))
        await source.execute(f"locking {_listed(tables)} for {doing}", statement)


def _table_list(tables: Sequence[SourceTable | PublishedTable]) -> sql.Composed:
    """ONLY: tables that inherit are published when they are named themselves."""
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(table.schema, table.name)) for table in tables)


def _lock_list(tables: Sequence[SourceTable | PublishedTable]) -> sql.Composed:
    """Partitions are locked with their root, as they can be written to by their own names; not those of a table that leaves."""
    is_whole = [isinstance(table, SourceTable) and table.kind == "p" for table in tables]
    return sql.SQL(", ").join(
        sql.SQL("{}" if whole else "ONLY {}").format(sql.Identifier(table.schema, table.name))
        for table, whole in zip(tables, is_whole, strict=True)
    )


async def drop_publication(source: Source, names: GroupNames) -> bool:
    """Whether there was one that we made; an administrator's stays. The caller has checked its owner."""
    publication = await find_publication(source, names)
    if publication is None:
        return False
    if not publication.is_made_by(names):
        log.info("the publication was not made by pgsluice and stays", publication=names.publication)
        return False
    statement = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(names.publication))
    await source.execute(f"dropping publication {names.publication}", statement)
    return True
