"""Findings about the tables that a group takes: may they be read, and what of them will not be in the stream.

Whether they can be published at all, and with which identity, is the start's business (``preflight.start``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.source.catalog import GENERATED_SINCE, read_tables
from pgsluice.replicator.source.inheritance import heirs_left_out
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.source.tables import SourceTable
from pgsluice.shared.preflight.finding import Finding, Severity, Subject, listed
from pgsluice.shared.preflight.provider import grants_bypassing_row_security
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern

SHOWN = 10
KEYLESS = "source-keyless-full"

_DOING = "looking at the tables"

_SHAPES: LiteralString = """
    SELECT format('%%I.%%I', n.nspname, c.relname) AS name, c.relreplident::text AS identity,
           row_security_active(c.oid) AS has_row_security, quote_ident(pg_get_userbyid(c.relowner)) AS owner,
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
                  ORDER BY a.attnum) AS generated,
           c.relreplident <> 'f' AND EXISTS (SELECT FROM pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attstorage IN ('x', 'e', 'm')
                    AND a.attlen = -1 AND c.relkind = 'r') AS is_toasted,
           ARRAY(SELECT format('ALTER TABLE %%I.%%I REPLICA IDENTITY ', pn.nspname, p.relname)
                        || CASE c.relreplident WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING' WHEN 'd' THEN 'DEFAULT'
                                ELSE 'USING INDEX ' || quote_ident(b.name) END
                   FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid
                   JOIN pg_namespace pn ON pn.oid = p.relnamespace
                   LEFT JOIN LATERAL (
                       WITH RECURSIVE k (oid) AS (
                           SELECT r.indexrelid FROM pg_index r WHERE r.indrelid = c.oid AND r.indisreplident
                            UNION SELECT i.inhrelid FROM k JOIN pg_inherits i ON i.inhparent = k.oid)
                       SELECT bc.relname AS name, u.indisreplident AS is_used
                         FROM k JOIN pg_index u ON u.indexrelid = k.oid JOIN pg_class bc ON bc.oid = k.oid
                        WHERE u.indrelid = p.oid) b ON c.relreplident = 'i'
                  WHERE c.relkind = 'p' AND t.relid <> c.oid AND t.isleaf
                    AND CASE c.relreplident WHEN 'i' THEN b.name IS NOT NULL AND NOT (p.relreplident = 'i' AND b.is_used)
                                            WHEN 'd' THEN p.relreplident <> 'd' AND EXISTS (
                                                SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisprimary)
                                            ELSE p.relreplident <> c.relreplident END
                  ORDER BY 1) AS partition_cures
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY(%s::oid[])
     ORDER BY 1
"""

_UNLOGGED: LiteralString = """
    SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'u' AND n.nspname LIKE %(schema)s AND c.relname LIKE %(table)s
     ORDER BY 1, 2
"""


_KEYLESS: LiteralString = """
    SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY(%s::oid[]) AND c.relreplident = 'f'
       AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid)
     ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class _Shape:
    name: str
    identity: str
    has_row_security: bool
    owner: str
    generated: list[str]
    is_toasted: bool
    partition_cures: list[str]


async def table_findings(
    source: Source, facts: SourceFacts, names: GroupNames, tables: Sequence[SourceTable], *, copies: bool
) -> list[Finding]:
    """``copies``: existing rows are read too, by SELECT."""
    shapes = await source.rows_of(_Shape, _DOING, _SHAPES, [[table.oid for table in tables]])
    found = [*await _unreadable(source, facts, names, tables), *_row_security(facts, shapes)] if copies else []
    return [*found, *_partitions(shapes), *await _inheritance(source, tables), *_not_sent(facts, shapes)]


async def keyless_findings(source: Source, tables: Collection[SourceTable], operations: Collection[str]) -> list[Finding]:
    """Returns a finding for each table whose rows are identified only by all of their values. ``operations`` are the
    published ones."""
    if not {"update", "delete"} & set(operations):
        return []
    return [
        Finding(
            KEYLESS,
            Severity.WARNING,
            Subject.SOURCE,
            f"{name} has REPLICA IDENTITY FULL and no primary key: for each UPDATE and DELETE of a row a Postgres target scans"
            " its whole table, which needs minutes for thousands of them",
            f"ALTER TABLE {name} ADD PRIMARY KEY (…), or a unique index on columns that are NOT NULL and ALTER TABLE {name}"
            " REPLICA IDENTITY USING INDEX …, at the source and at the target",
        )
        for (name,) in await source.rows(_DOING, _KEYLESS, [[table.oid for table in tables]])
    ]


async def unlogged_findings(source: Source, patterns: Collection[TablePattern]) -> list[Finding]:
    """Returns tables that a pattern leaves out in silence, because the WAL does not hold their rows."""
    found = []
    for pattern in patterns:
        assert pattern.schema is not None
        if pattern.is_name:
            continue  # that one is refused
        parameters = {"schema": pattern.schema.like, "table": pattern.name.like}
        for schema, name in await source.rows(_DOING, _UNLOGGED, parameters):
            cure = sql.SQL("ALTER TABLE {} SET LOGGED").format(sql.Identifier(schema, name)).as_string()
            fact = f"{schema}.{name} is unlogged: the group leaves it out, although {pattern.text} matches it"
            remedy = f"nothing, when it is not to be replicated; else: {cure}"  # which costs its writers time
            found.append(Finding("source-unlogged", Severity.WARNING, Subject.SOURCE, fact, remedy, choices=(cure,)))
    return found


async def _unreadable(source: Source, facts: SourceFacts, names: GroupNames, tables: Sequence[SourceTable]) -> list[Finding]:
    read = await read_tables(source, names, [table.oid for table in tables], facts.major_version)
    refused = {table.table.qualified_name: table.obstacle for table in read if table.obstacle is not None}
    lacking = {name: obstacle for name, obstacle in refused.items() if obstacle.statements}
    others = [Finding.of(obstacle, "source-table", Subject.SOURCE) for obstacle in refused.values() if not obstacle.statements]
    if not lacking:
        return others
    statements = tuple(dict.fromkeys(statement for obstacle in lacking.values() for statement in obstacle.statements))
    remedy = "; ".join(statements[:SHOWN]) + ("; and more like these" if len(statements) > SHOWN else "")
    fact = f"the role may not read all of {listed(list(lacking))}: they cannot be copied"
    return [*others, Finding("source-select", Severity.ERROR, Subject.SOURCE, fact, remedy, statements)]


def _row_security(facts: SourceFacts, shapes: Sequence[_Shape]) -> Iterator[Finding]:
    for shape in shapes:
        if not shape.has_row_security:
            continue
        # a policy does not help: with row_security = off, each policy that applies to the role is an error
        bypasses = grants_bypassing_row_security(facts.provider)
        statement = f"ALTER ROLE {facts.role} BYPASSRLS" if bypasses else f"GRANT {shape.owner} TO {facts.role}"
        fact = f"row security of {shape.name} hides rows from role {facts.user!r}: it cannot be copied"
        yield Finding("source-row-security", Severity.ERROR, Subject.SOURCE, fact, statement, (statement,))


def _partitions(shapes: Sequence[_Shape]) -> Iterator[Finding]:
    for shape in shapes:
        if shape.partition_cures:
            yield Finding(
                "source-partition-identity",
                Severity.WARNING,
                Subject.SOURCE,
                f"{len(shape.partition_cures)} partitions of {shape.name} have another replica identity than it has: the"
                " content of old rows depends on the partition",
                "; ".join(shape.partition_cures[:SHOWN]),
                tuple(shape.partition_cures),
            )


async def _inheritance(source: Source, tables: Sequence[SourceTable]) -> list[Finding]:
    oids, found = [table.oid for table in tables], []
    for name, heirs in await heirs_left_out(source, oids, oids):
        fact = f"rows of tables that inherit from {name} are not rows of it, and the group leaves these out: {listed(heirs, 3)}"
        remedy = "add them to tables, or leave them out on purpose (the parent of a hypertable holds no rows)"
        found.append(Finding("source-inheritance", Severity.WARNING, Subject.SOURCE, fact, remedy))
    return found


def _not_sent(facts: SourceFacts, shapes: Sequence[_Shape]) -> Iterator[Finding]:
    if generated := [f"{shape.name} ({', '.join(shape.generated)})" for shape in shapes if shape.generated]:
        publish = (
            "or publish them with a custom publication (publish_generated_columns = stored)"
            if facts.major_version >= GENERATED_SINCE
            else "PostgreSQL 18 can publish them"
        )
        yield Finding(
            "source-generated-columns",
            Severity.INFO,
            Subject.SOURCE,
            f"generated columns are not replicated: {listed(generated)}",
            f"define them at the target; {publish}",
        )
    if toasted := [shape.name for shape in shapes if shape.is_toasted]:
        yield Finding(
            "source-toasted-columns",
            Severity.INFO,
            Subject.SOURCE,
            "PostgreSQL does not send TOAST values (large values) that an UPDATE does not change; filters, and sinks that need"
            f" whole rows, lack them: {listed(toasted)}",
            "if that matters, ALTER TABLE … REPLICA IDENTITY FULL, which makes the WAL larger",
        )
