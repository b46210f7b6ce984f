"""Facts about tables from the source's catalog, for three questions.

Which are published, what a Relation message lacks about its table, and which tables to copy, as of the snapshot that
will copy them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import LiteralString

from pgsluice.replicator.source.column_sql import COLLATION, NOT_NULL
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import SourceTable
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput.messages import RelationColumn
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

FILTERS_SINCE = 15
"""Row filters and column lists of publications came with PostgreSQL 15."""

GENERATED_SINCE = 18
"""Generated columns may be published since; PostgreSQL 15 lists them among a publication's columns and does not send them."""


@dataclass(frozen=True, slots=True)
class CopiedRelation:
    """Pages: a table, or one partition of it. ``filenode`` is the snapshot's."""

    oid: int
    schema: str
    name: str
    filenode: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table to be copied. ``table`` has the columns that are copied, in the sequence of the rows' fields.
    ``row_filter`` is an SQL condition, "" without one. ``obstacle`` is why it cannot be copied."""

    table: Table
    relations: tuple[CopiedRelation, ...]
    row_filter: str
    obstacle: TerminalError | None

    @property
    def size_bytes(self) -> int:
        return sum(relation.size_bytes for relation in self.relations)


@dataclass(frozen=True, slots=True)
class _RelationRow:
    """A relation that holds rows of the table ``table_oid``: the table itself or one of its partitions.

    ``filenode`` is as of the snapshot; a relation that was rewritten has another. ``size_bytes`` is None when it is gone.
    ``schema_grant`` and ``select_grant`` are the statements by which the role could read it, the first "" when it may use the
    schema.
    """

    table_oid: int
    oid: int
    schema: str
    name: str
    kind: str
    filenode: int
    size_bytes: int | None
    unreadable_columns: list[str]
    schema_grant: str
    select_grant: str


DOING = "reading the catalog"

_TABLES: LiteralString = """
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relreplident::text
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY(%s::oid[])
"""

_UNDER_ANOTHER: LiteralString = """
    SELECT c.oid::bigint FROM unnest(%(oids)s::oid[]) AS c (oid)
     WHERE EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid AND a.relid = ANY(%(oids)s::oid[]))
"""

_FILTERS: LiteralString = """
    SELECT r.prrelid::bigint, pg_get_expr(r.prqual, r.prrelid)
      FROM ({named}) r WHERE r.prqual IS NOT NULL AND r.prrelid = ANY(%s::oid[])
"""

_LISTS: LiteralString = """
    SELECT r.prrelid::bigint, ARRAY(SELECT a.attname::text FROM pg_attribute a
                                     WHERE a.attrelid = r.prrelid AND a.attnum = ANY(r.prattrs::int2[]))
      FROM ({named}) r WHERE r.prattrs IS NOT NULL
"""

_LIMITED: LiteralString = """
    SELECT r.* FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid
     WHERE p.pubname = %s AND NOT p.puballtables AND NOT EXISTS (
               SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
"""
"""A publication of a table's schema, or of all tables, sends all of the table."""

_SENDS_GENERATED: LiteralString = "SELECT FROM pg_publication p WHERE p.pubname = %s AND to_jsonb(p) ->> 'pubgencols' = 's'"

COLUMNS: LiteralString = f"""
    SELECT a.attrelid::bigint, a.attname::text, a.atttypid::bigint,
           format_type(a.atttypid, a.atttypmod), a.atttypmod, {NOT_NULL},
           p.position::int,
           c.relreplident = 'f' OR (c.relreplident = 'd' AND p.position IS NOT NULL)
               OR (c.relreplident = 'i' AND a.attnum = ANY(coalesce(r.indkey::int2[], '{{}}'))),
           a.attidentity::text, a.attgenerated::text, a.attnum::int, {COLLATION}
      FROM pg_attribute a
      JOIN pg_class c ON c.oid = a.attrelid
      LEFT JOIN (SELECT i.indrelid, n.attnum, n.position
                   FROM pg_index i, unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS n (attnum, position)
                  WHERE i.indisprimary) p ON p.indrelid = a.attrelid AND p.attnum = a.attnum
      LEFT JOIN pg_index r ON r.indrelid = a.attrelid AND r.indisreplident
     WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attrelid, a.attnum
"""

# Like pg_get_publication_tables, which would lock each table: another session may hold a lock for long, and streaming
# must not wait for that.
_PUBLISHED: LiteralString = """
    WITH RECURSIVE publication AS (SELECT * FROM pg_publication WHERE pubname = %s),
    named (oid) AS (
        SELECT r.prrelid FROM publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
         UNION
        SELECT c.oid FROM publication p JOIN pg_class c ON p.puballtables {or_schema}
         WHERE c.relkind IN ('r', 'p') AND pg_relation_is_publishable(c.oid)),
    sent (oid) AS (
        SELECT oid FROM named
         UNION
        SELECT i.inhrelid FROM sent s JOIN pg_inherits i ON i.inhparent = s.oid
         WHERE NOT i.inhdetachpending AND EXISTS (SELECT FROM pg_class c WHERE c.oid = s.oid AND c.relkind = 'p'))
    SELECT c.oid::bigint FROM sent s JOIN pg_class c ON c.oid = s.oid CROSS JOIN publication p
     WHERE CASE WHEN p.pubviaroot
                THEN NOT (c.relispartition AND (p.puballtables OR EXISTS (
                         SELECT FROM pg_partition_ancestors(c.oid) a JOIN named n ON n.oid = a.relid WHERE a.relid <> c.oid)))
                ELSE c.relkind <> 'p' END
     ORDER BY c.oid
"""

_OF_SCHEMA: LiteralString = "OR c.relnamespace IN (SELECT s.pnnspid FROM pg_publication_namespace s WHERE s.pnpubid = p.oid)"

_TYPE_NAMES: LiteralString = """
    SELECT format_type(type_oid, typmod)
      FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS w (type_oid, typmod, ordinality)
     ORDER BY ordinality
"""

_RELATIONS: LiteralString = """
    SELECT t.oid::bigint AS table_oid, c.oid::bigint, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
           c.relfilenode::bigint AS filenode, pg_relation_size(c.oid) AS size_bytes,
           CASE WHEN pg_relation_size(c.oid) IS NULL THEN '{}'
                ELSE ARRAY(SELECT a.attname::text FROM pg_attribute a
                            WHERE a.attrelid = c.oid AND (a.attnum > 0 OR a.attname = 'ctid') AND NOT a.attisdropped
                              AND NOT coalesce(has_column_privilege(a.attrelid, a.attnum, 'SELECT'), true)) END
               AS unreadable_columns,
           CASE WHEN has_schema_privilege(n.oid, 'USAGE') THEN ''
                ELSE format('GRANT USAGE ON SCHEMA %%I TO %%I', n.nspname, current_user) END AS schema_grant,
           format('GRANT SELECT ON %%I.%%I TO %%I', n.nspname, c.relname, current_user) AS select_grant
      FROM unnest(%s::oid[]) AS t (oid)
      JOIN pg_class r ON r.oid = t.oid
      JOIN LATERAL (SELECT t.oid AS relid WHERE r.relkind <> 'p'
                    UNION ALL SELECT relid::oid FROM pg_partition_tree(t.oid) WHERE r.relkind = 'p' AND isleaf) m ON true
      JOIN pg_class c ON c.oid = m.relid
      JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind <> 'p'
     ORDER BY t.oid, n.nspname, c.relname
"""


async def published_oids(source: Source, names: GroupNames) -> list[int]:
    """Returns the tables of the group's publication under whose names rows are sent. None of them is locked."""
    query = _PUBLISHED.format(or_schema=_OF_SCHEMA if source.major_version >= FILTERS_SINCE else "")
    return [oid for (oid,) in await source.rows(DOING, query, [names.publication])]


def has_whole_key(columns: Sequence[Column], sent: Collection[str]) -> bool:
    """Returns whether all of the primary key is published: a generated column may not be, nor one that a list leaves
    out.
    """
    return all(column.name in sent for column in columns if column.primary_key_position is not None)


async def type_names(source: Source, columns: Sequence[RelationColumn], known: Mapping[str, Column]) -> list[str]:
    """Returns the catalog's names of the types, when every column has the type that it had then."""
    if all(column.name in known and _type(known[column.name]) == _type(column) for column in columns):
        return [known[column.name].type_name for column in columns]
    parameters = [[column.type_oid for column in columns], [column.typmod for column in columns]]
    return [name for (name,) in await source.rows(DOING, _TYPE_NAMES, parameters)]


def _type(column: Column | RelationColumn) -> tuple[int, int]:
    return column.type_oid, column.typmod


async def _columns(source: Source, oids: Sequence[int]) -> defaultdict[int, list[Column]]:
    """Returns every column of the tables, by their oids."""
    columns: defaultdict[int, list[Column]] = defaultdict(list)
    for oid, *facts in await source.rows(DOING, COLUMNS, [list(oids)]):
        columns[oid].append(Column(*facts))
    return columns


async def fold_partitions(source: Source, tables: Sequence[SourceTable]) -> list[SourceTable]:
    """Returns ``tables`` without those whose rows are published under another of them."""
    oids = [table.oid for table in tables]
    rows = await source.rows("looking up partitions", _UNDER_ANOTHER, {"oids": oids})
    folded = {oid for (oid,) in rows}
    return [table for table in tables if table.oid not in folded]


async def read_tables(source: Source, names: GroupNames, oids: Sequence[int], major_version: int) -> list[CopiedTable]:
    """Returns the tables with these oids, without missing ones.

    Row filters and column lists of the group's publication (if it exists) apply to a copy too.
    """
    relations: defaultdict[int, list[_RelationRow]] = defaultdict(list)
    for relation in await source.rows_of(_RelationRow, DOING, _RELATIONS, [list(oids)]):
        relations[relation.table_oid].append(relation)
    described = await describe_tables(source, names, oids, major_version)
    filters: dict[int, str] = {}
    if major_version >= FILTERS_SINCE:
        filters = dict(await source.rows(DOING, _FILTERS.format(named=_LIMITED), [names.publication, list(oids)]))
    return [_copied_table(table, relations[table.oid], filters.get(table.oid, "")) for table in described]


async def describe_tables(source: Source, names: GroupNames, oids: Sequence[int], major_version: int) -> list[Table]:
    """Returns the tables with these oids, with their published columns, as far as messages describe them; without
    missing ones. None of them is locked."""
    tables = await source.rows(DOING, _TABLES, [list(oids)])
    lists: dict[int, list[str]] = {}
    if major_version >= FILTERS_SINCE:
        lists = dict(await source.rows(DOING, _LISTS.format(named=_LIMITED), [names.publication]))
    sends_generated = bool(await source.rows(DOING, _SENDS_GENERATED, [names.publication]))
    columns = await _columns(source, oids)
    described = []
    for oid, schema, name, identity in tables:
        plain = [column.name for column in columns[oid] if not column.generated]
        stored = [column.name for column in columns[oid] if sends_generated and column.generated == "s"]
        sent = set(lists.get(oid, [*plain, *stored]))
        if major_version < GENERATED_SINCE:
            sent &= set(plain)
        chosen = tuple(column for column in columns[oid] if column.name in sent)
        if not has_whole_key(columns[oid], sent):
            chosen = tuple(replace(column, primary_key_position=None) for column in chosen)
        described.append(Table(oid, schema, name, ReplicaIdentity(identity), chosen))
    return described


def _copied_table(table: Table, relations: Sequence[_RelationRow], row_filter: str) -> CopiedTable:
    return CopiedTable(
        table=table,
        relations=tuple(
            CopiedRelation(relation.oid, relation.schema, relation.name, relation.filenode, relation.size_bytes or 0)
            for relation in relations
        ),
        row_filter=row_filter,
        obstacle=_obstacle(table, relations),
    )


def _obstacle(table: Table, relations: Sequence[_RelationRow]) -> TerminalError | None:
    """Returns why the table cannot be copied; None when it can."""
    for relation in relations:
        name = f"{relation.schema}.{relation.name}"
        if relation.kind != "r":
            return TerminalError(
                f"{name}, a partition of {table.qualified_name}, is a foreign table", "its rows cannot be copied; detach it"
            )
        needed = [*(column.name for column in table.columns), "ctid"]
        unreadable = [column for column in needed if column in relation.unreadable_columns]
        if unreadable:
            also = f"{relation.schema_grant}; " if relation.schema_grant else ""
            return TerminalError(
                f"the role may not read {', '.join(unreadable)} of {name}",
                f"{also}{relation.select_grant}, or SELECT on its columns and ctid, by which pages are distinguished",
                statements=[*([relation.schema_grant] if also else []), relation.select_grant],
            )
        if relation.schema_grant:
            fact = f"the role may not use the schema of {name}"
            return TerminalError(fact, relation.schema_grant, statements=[relation.schema_grant])
    return None
