"""The publication in the source's catalog: found, created, altered, and compared with a group's configuration.

Partitions are published under their root, so a target sees one table. The comment of a publication that pgsluice
created holds the group's own spelling: ``a-b`` and ``a_b`` have the same publication name, and the second of them is
refused. A publication without that comment is an administrator's: it is used unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar

from psycopg import sql

from pgsluice.replicator.source.catalog import published_oids
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import SourceTable, check_publisher
from pgsluice.shared import telemetry
from pgsluice.shared.errors import START_AGAIN, TerminalError, UsageError
from pgsluice.shared.preflight.finding import listed
from pgsluice.shared.wire.names import SOURCE_SCHEMA, GroupNames

OPERATIONS = ("insert", "update", "delete", "truncate")

SCHEMAS_SINCE = 15
"""Row filters, column lists and whole schemas came with PostgreSQL 15."""

PIECE = 100
"""Tables that are published in one transaction. Each takes a lock, and a server may have few of them."""

_COMMENT_PREFIX = "pgsluice group "

log = telemetry.logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that the publication names or covers. ``xmin`` is the transaction that wrote the catalog's row of it, ""
    without one: a table that was taken out and in again has another. ``row_filter`` and ``columns`` are "" without; the
    filter is a hash, because to show a filter the server locks its table. ``is_named``: the publication names it, not
    only its schema."""

    oid: int
    schema: str
    name: str
    kind: str
    xmin: str
    row_filter: str
    columns: str
    is_named: bool = True

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class _PublicationRow:
    oid: int
    xmin: str
    lsn: str
    operations: list[str]
    all_tables: bool
    schemas: list[str]
    via_partition_root: bool
    comment: str | None
    next_xid: str


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication in the catalog. ``oid`` identifies it: one that was dropped and made again has another. ``xmin`` is
    the transaction that altered its operations, options or owner last, ``lsn`` is where the source was before this was
    read. ``covers_more``: it is of all tables, or of all tables of ``schemas``. Transactions from ``next_xid`` on were
    not seen."""

    name: str
    oid: int
    xmin: str
    lsn: str
    operations: tuple[str, ...]
    covers_more: bool
    via_partition_root: bool
    comment: str | None
    tables: tuple[PublishedTable, ...]
    schemas: tuple[str, ...] = ()
    next_xid: str = ""

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
           p.puballtables AS all_tables, {schemas} AS schemas, p.pubviaroot AS via_partition_root,
           obj_description(p.oid, 'pg_publication') AS comment,
           pg_snapshot_xmax(pg_current_snapshot())::xid::text AS next_xid
      FROM pg_publication p
     WHERE p.pubname = %s
"""

_NAMED: LiteralString = """
    SELECT c.oid::bigint, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind, r.xmin::text,
           {row_filter} AS row_filter, coalesce(to_jsonb(r) ->> 'prattrs', '') AS columns, true AS is_named
      FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE r.prpubid = %s
"""

_COVERED: LiteralString = """
    SELECT c.oid::bigint, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
           {xmin} AS xmin, '' AS row_filter, '' AS columns, false AS is_named
      FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE p.oid = %s AND c.oid = ANY(%s::oid[]) AND NOT (n.nspname = '{own}' AND starts_with(c.relname, 'token_'))
"""
"""Omits the tables of captured definitions, whose rows are never sent (``replicator.definitions.installation``)."""

_SCHEMAS: LiteralString = """
    ARRAY(SELECT n.nspname::text FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid WHERE s.pnpubid = p.oid)
"""

# The row of pg_depend by which a table is in its schema is written when it is made, and when it is put into another schema.
_COVERED_XMIN: LiteralString = """
    coalesce((SELECT s.xmin::text || coalesce((SELECT '/' || d.xmin::text FROM pg_depend d
                                                WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                                                  AND d.refclassid = 'pg_namespace'::regclass LIMIT 1), '')
                FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid), '')
"""

_DOING = "looking up the publication"


async def find_publication(source: Source, names: GroupNames) -> Publication | None:
    is_new = source.major_version >= SCHEMAS_SINCE
    schemas = _SCHEMAS if is_new else "'{}'::text[]"
    found = await source.rows_of(_PublicationRow, _DOING, _PUBLICATION.format(schemas=schemas), [names.publication])
    if not found:
        return None
    [row] = found
    row_filter = "coalesce(md5(r.prqual::text), '')" if is_new else "''"
    tables = {table.oid: table for table in await _tables(source, _NAMED.format(row_filter=row_filter), [row.oid])}
    if row.all_tables or row.schemas:
        query = _COVERED.format(xmin=_COVERED_XMIN if is_new else "''", own=SOURCE_SCHEMA)
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
        schemas=tuple(row.schemas),
        next_xid=row.next_xid,
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
            f"publication {publication.name} was dropped and created again: changes in between were not published", START_AGAIN
        )


def gone(names: GroupNames) -> TerminalError:
    return TerminalError(f"publication {names.publication} was dropped while the slot needs it", START_AGAIN)


def check_fit(publication: Publication, tables: Sequence[SourceTable]) -> None:
    """Raises TerminalError, with the statements for its owner, when an administrator's publication lacks tables or
    options that the group wants.

    Its other tables are left out, and its operations are accepted.
    """
    name = sql.Identifier(publication.name)
    differences, statements = [], []
    if missing := [table for table in tables if table.oid not in publication.oids]:
        differences.append(f"does not publish {listed([table.qualified_name for table in missing])}")
        statements.append(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, table_list(missing)))
    if not publication.via_partition_root and any(table.kind == "p" for table in tables):
        differences.append("publishes partitions under their own names")
        statements.append(sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)").format(name))
    if differences:
        raise TerminalError(
            f"publication {publication.name}, which an administrator made, {' and '.join(differences)}",
            f"let its owner run: {'; '.join(statement.as_string() for statement in statements)}",
            statements=[statement.as_string() for statement in statements],
        )


def creation(names: GroupNames, tables: Sequence[SourceTable], operations: Collection[str]) -> sql.Composed:
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = {}, publish_via_partition_root = true)").format(
        sql.Identifier(names.publication), table_list(tables), sql.Literal(", ".join(operations))
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


def pieces(tables: Sequence[T]) -> list[Sequence[T]]:
    """Splits the tables into groups, each published in one transaction."""
    return [tables[start : start + PIECE] for start in range(0, len(tables), PIECE)]


async def create_publication(
    source: Source, names: GroupNames, tables: Sequence[SourceTable], operations: Collection[str]
) -> Publication:
    """Creates the publication. Call it before there is a slot: its creation waits for the transactions that do not know
    the publication yet."""
    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(names.publication), sql.Literal(_COMMENT_PREFIX + names.group)
    )
    await check_creation(source, names, tables, operations)
    doing = f"creating publication {names.publication}"
    first, *others = pieces(tables)
    async with source.transaction(doing):
        await source.execute(doing, creation(names, first, operations))
        await source.execute(f"naming the group of publication {names.publication}", comment)
    for piece in others:
        addition = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}")
        await source.execute(doing, addition.format(sql.Identifier(names.publication), table_list(piece)))
    made = await find_publication(source, names)
    if made is None:
        raise TerminalError(f"publication {names.publication} disappeared while it was made", "start again")
    return made


def table_list(tables: Sequence[SourceTable | PublishedTable]) -> sql.Composed:
    """ONLY: tables that inherit are published when they are named themselves."""
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(table.schema, table.name)) for table in tables)


async def drop_publication(source: Source, names: GroupNames) -> bool:
    """Drops the publication that the group created; returns whether it existed. An administrator's stays. The caller
    has checked its owner."""
    publication = await find_publication(source, names)
    if publication is None:
        return False
    if not publication.is_made_by(names):
        log.info("the publication was not made by pgsluice and stays", publication=names.publication)
        return False
    statement = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(names.publication))
    await source.execute(f"dropping publication {names.publication}", statement)
    return True
