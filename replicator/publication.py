"""The group's publication: made and kept equal to the configuration.

Partitions are published under their root, so a target sees one table. The publication's comment holds the group's own
spelling: ``a-b`` and ``a_b`` have the same publication name, and the second of them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from replicator.privileges import check_publisher
from replicator.source import Source
from replicator.tables import SourceTable
from shared.errors import TerminalError, UsageError
from shared.names import GroupNames

OPERATIONS = ("insert", "update", "delete", "truncate")

_COMMENT_PREFIX = "pgsluice group "


@dataclass(frozen=True, slots=True)
class Publication:
    """What the catalog holds. ``oid`` identifies it: one that was dropped and made again has another."""

    oid: int
    operations: list[str]
    all_tables: bool
    via_partition_root: bool
    comment: str | None
    table_oids: list[int]


_PUBLICATION: LiteralString = """
    SELECT p.oid::bigint,
           array_remove(ARRAY[CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
                              CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END],
                        NULL) AS operations,
           p.puballtables AS all_tables, p.pubviaroot AS via_partition_root,
           obj_description(p.oid, 'pg_publication') AS comment,
           ARRAY(SELECT prrelid::bigint FROM pg_publication_rel WHERE prpubid = p.oid) AS table_oids
      FROM pg_publication p
     WHERE p.pubname = %s
"""


async def find_publication(source: Source, names: GroupNames) -> Publication | None:
    found = await source.rows_of(Publication, "looking up the publication", _PUBLICATION, [names.publication])
    return found[0] if found else None


def check_owner(publication: Publication, names: GroupNames) -> None:
    """Raises UsageError when another group made it."""
    comment = publication.comment or ""
    if comment.startswith(_COMMENT_PREFIX) and comment != _COMMENT_PREFIX + names.group:
        other = comment.removeprefix(_COMMENT_PREFIX)
        raise UsageError(
            f"publication {names.publication} belongs to group {other!r}, which differs from {names.group!r} in '-' and '_' only",
            "choose another group name",
        )


async def ensure_publication(
    source: Source, names: GroupNames, tables: Sequence[SourceTable], operations: Sequence[str]
) -> Publication:
    """The publication, holding exactly ``tables`` and ``operations`` when this returns. The caller has checked its owner."""
    publication = await find_publication(source, names)
    if publication is None:
        await _create(source, names, tables, operations)
    else:
        await _align(source, names, publication, tables, operations)
    made = await find_publication(source, names)
    if made is None:
        raise TerminalError(f"publication {names.publication} disappeared while it was made", "start again")
    return made


async def _create(source: Source, names: GroupNames, tables: Sequence[SourceTable], operations: Sequence[str]) -> None:
    await check_publisher(source, tables, creates=True)
    statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = {}, publish_via_partition_root = true)").format(
        sql.Identifier(names.publication), _table_list(tables), sql.Literal(", ".join(operations))
    )
    await source.execute(f"creating publication {names.publication}", statement)
    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(names.publication), sql.Literal(_COMMENT_PREFIX + names.group)
    )
    await source.execute(f"naming the group of publication {names.publication}", comment)


async def _align(
    source: Source, names: GroupNames, publication: Publication, tables: Sequence[SourceTable], operations: Sequence[str]
) -> None:
    if publication.all_tables:
        raise TerminalError(
            f"publication {names.publication} was made FOR ALL TABLES by somebody else", "drop it; pgsluice makes its own"
        )
    name = sql.Identifier(names.publication)
    doing = f"changing publication {names.publication}"
    if set(publication.operations) != set(operations) or not publication.via_partition_root:
        options = sql.SQL("ALTER PUBLICATION {} SET (publish = {}, publish_via_partition_root = true)")
        await source.execute(doing, options.format(name, sql.Literal(", ".join(operations))))
    if set(publication.table_oids) != {table.oid for table in tables}:
        await check_publisher(source, tables, creates=False)
        await source.execute(doing, sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(name, _table_list(tables)))


def _table_list(tables: Sequence[SourceTable]) -> sql.Composed:
    """ONLY: tables that inherit are published when they are named themselves."""
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(table.schema, table.name)) for table in tables)


async def drop_publication(source: Source, names: GroupNames) -> bool:
    """Whether there was one. The caller has checked its owner."""
    if await find_publication(source, names) is None:
        return False
    statement = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(names.publication))
    await source.execute(f"dropping publication {names.publication}", statement)
    return True
