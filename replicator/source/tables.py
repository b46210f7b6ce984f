"""The tables of the source for a group, obstacles to their publication, and the rights that the role lacks for it.

Rights that are missing are named all at once, each by the statement that grants it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.preflight.finding import raise_all
from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.shared.wire.table import NamePattern, TablePattern

SHOWN = 20  # statements for missing rights


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A relation of the source. ``root_oid`` is the topmost partitioned table above it (0: it is no partition).

    ``unidentified`` names the table itself or its partitions that have no replica identity, and ``identity_cures`` has
    for each the statement that gives it one, by an index where one can serve, for a partitioned table by the same in
    all of them. ``unsent`` names the ones whose replica identity has generated columns, each with the publications that
    send these. ``extension`` owns the table: a target with that extension has its own table.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    root_oid: int
    unidentified: list[str]
    identity_cures: list[str]
    unsent: list[tuple[str, list[str]]] = field(default_factory=list)
    extension: str = ""

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def reason_to_leave_out(self) -> str | None:
        """Why a group does not follow it, unless it is named exactly; None when it does."""
        return f"a table of extension {self.extension}" if self.extension else self.obstacle

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be published; None when it can."""
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}
        if self.kind not in "rp":
            return kinds.get(self.kind, "not a table")
        if self.persistence != "p":
            return "temporary" if self.persistence == "t" else "unlogged"
        if self.schema == "information_schema" or self.schema.startswith("pg_"):
            return "a system table"
        if self.schema == TARGET_SCHEMA:
            return f"in schema {TARGET_SCHEMA}, which holds pgsluice's own tables at a target"
        return None


# No lock is taken, as by pg_partition_tree of every partition: another session can hold one for long.
_USABLE: LiteralString = """
    u.indisunique AND u.indimmediate AND u.indisvalid AND u.indpred IS NULL AND u.indexprs IS NULL
    AND NOT EXISTS (SELECT FROM unnest(u.indkey[0:u.indnkeyatts - 1]) AS k (number)
                      JOIN pg_attribute a ON a.attrelid = u.indrelid AND a.attnum = k.number
                     WHERE NOT a.attnotnull OR a.attgenerated <> '')
"""
"""SQL condition: the index ``u`` can identify rows."""

_BELOW_CHOSEN: LiteralString = """
    WITH RECURSIVE k (oid) AS (
        SELECT chosen.indexrelid UNION SELECT i.inhrelid FROM k JOIN pg_inherits i ON i.inhparent = k.oid)
    SELECT k.oid FROM k
"""
"""The root's index and those of the partitions that belong to it: rows of all partitions are identified in one way."""

_SENDERS: LiteralString = """
    ARRAY(SELECT p.pubname FROM pg_publication p
           WHERE to_jsonb(p) ->> 'pubgencols' = 's' OR x.relreplident <> 'f' AND x.generated <@ ARRAY(
                     SELECT a.attname FROM pg_publication_rel r JOIN pg_attribute a ON a.attrelid = r.prrelid
                      WHERE r.prpubid = p.oid AND r.prrelid IN (x.oid, c.oid)
                        AND a.attnum = ANY(translate(to_jsonb(r) ->> 'prattrs', '[]', '{}')::int2[])))
"""
"""The publications that send the generated columns ``x.generated`` of a table or of a partition: they publish every
stored one, or their list of columns names these. No list of columns serves REPLICA IDENTITY FULL, whatever it names."""

_COLUMNS: LiteralString = f"""
    SELECT c.oid::bigint, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
           c.relpersistence::text AS persistence,
           CASE WHEN c.relispartition THEN coalesce(pg_partition_root(c.oid), 0::oid)::bigint ELSE 0 END AS root_oid,
           coalesce(lacking.names, '{{}}') AS unidentified, coalesce(lacking.cures, '{{}}') AS identity_cures,
           coalesce(lacking.unsent, '[]') AS unsent,
           coalesce((SELECT e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                      WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
                        AND d.refclassid = 'pg_extension'::regclass LIMIT 1), '') AS extension
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN LATERAL (
          SELECT u.indexrelid FROM pg_index u JOIN pg_class ui ON ui.oid = u.indexrelid
           WHERE c.relkind = 'p' AND c.relreplident <> 'f' AND u.indrelid = c.oid AND {_USABLE}
           ORDER BY NOT (c.relreplident = 'i' AND u.indisreplident), NOT u.indisprimary, u.indnkeyatts, ui.relname
           LIMIT 1) AS chosen ON true
      LEFT JOIN LATERAL (
          SELECT array_agg(x.name ORDER BY x.place, x.name) FILTER (WHERE NOT x.is_identified) AS names,
                 array_agg(x.cure ORDER BY x.place, x.name) FILTER (WHERE NOT x.is_identified) AS cures,
                 jsonb_agg(jsonb_build_array(x.name, {_SENDERS}) ORDER BY x.place, x.name) FILTER (WHERE x.generated <> '{{}}')
                     AS unsent
            FROM (SELECT ln.nspname || '.' || l.relname AS name, l.oid <> c.oid AS place,
                         format('ALTER TABLE %%I.%%I REPLICA IDENTITY ', ln.nspname, l.relname) || coalesce(
                             (SELECT CASE WHEN u.indisprimary THEN 'DEFAULT' ELSE format('USING INDEX %%I', ui.relname) END
                                FROM pg_index u JOIN pg_class ui ON ui.oid = u.indexrelid
                               WHERE u.indrelid = l.oid AND {_USABLE}
                                 AND (c.relkind <> 'p' OR u.indexrelid IN ({_BELOW_CHOSEN}))
                               ORDER BY NOT u.indisprimary, u.indnkeyatts, ui.relname LIMIT 1), 'FULL') AS cure,
                         l.relreplident = 'f' OR found.indexrelid IS NOT NULL AS is_identified,
                         l.oid, l.relreplident,
                         ARRAY(SELECT a.attname FROM pg_attribute a
                                WHERE a.attrelid = l.oid AND a.attgenerated <> '' AND NOT a.attisdropped
                                  AND CASE WHEN l.relreplident = 'f' THEN current_setting('server_version_num')::int >= 180000
                                           ELSE a.attnum = ANY(found.indkey[0:found.indnkeyatts - 1]) END) AS generated
                    FROM (WITH RECURSIVE below (oid) AS (
                              SELECT c.oid UNION SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
                                                  WHERE c.relkind = 'p' AND NOT i.inhdetachpending)
                          SELECT b.oid FROM below b) b
                    JOIN pg_class l ON l.oid = b.oid JOIN pg_namespace ln ON ln.oid = l.relnamespace
                    LEFT JOIN pg_index found ON found.indrelid = l.oid AND found.indisvalid AND found.indimmediate
                          AND CASE l.relreplident WHEN 'd' THEN found.indisprimary WHEN 'i' THEN found.indisreplident END
                   WHERE l.relkind = 'r' OR (l.relkind = 'p' AND l.oid = c.oid)) AS x) AS lacking ON true
"""

_NAMED: LiteralString = """
     WHERE n.nspname LIKE %(schema)s AND c.relname LIKE %(table)s AND (%(is_name)s OR c.relkind IN ('r', 'p'))
     ORDER BY c.relname
"""

_DOING = "looking up the tables"


async def select_tables(source: Source, patterns: Sequence[str], default_schema: str) -> list[SourceTable]:
    """Returns the tables that ``patterns`` name (none: every table of ``default_schema``), each once, by name.

    A pattern leaves out what cannot be published, what belongs to an extension, and partitions whose root is taken.
    Raises UsageError for a schema or table that does not exist or that is named and cannot be published.
    """
    selected: dict[int, SourceTable] = {}
    for pattern in parse_patterns(patterns, default_schema):
        for table in await matching_tables(source, pattern):
            selected[table.oid] = table
    return sorted(selected.values(), key=lambda table: (table.schema, table.name))


async def tables_of(source: Source, oids: Collection[int]) -> list[SourceTable]:
    """Returns the tables that still exist, by name."""
    query = _COLUMNS + " WHERE c.oid = ANY(%s::oid[]) ORDER BY n.nspname, c.relname"
    return await source.rows_of(SourceTable, _DOING, query, [list(oids)])


async def named_unlogged(source: Source, patterns: Collection[TablePattern]) -> list[SourceTable]:
    """Returns tables that are asked for by name and refused because they are unlogged: once that is cured, they belong
    to the group."""
    found: list[SourceTable] = []
    for pattern in patterns:
        if pattern.is_name and pattern.schema is not None:
            parameters = {"schema": pattern.schema.like, "table": pattern.name.like, "is_name": False}
            found += await source.rows_of(SourceTable, _DOING, _COLUMNS + _NAMED, parameters)
    return [table for table in found if table.persistence == "u"]


def parse_patterns(patterns: Sequence[str], default_schema: str) -> list[TablePattern]:
    """Parses ``tables``: an empty list means every table of ``default_schema``."""
    return [parse_pattern(text, default_schema) for text in patterns or ("*",)]


def wanted_patterns(patterns: Sequence[str], default_schema: str, chosen_publication: str) -> list[TablePattern]:
    """Returns the patterns of ``tables``; none if only the name of an administrator's publication is given, which
    selects all its tables."""
    return parse_patterns(patterns, default_schema) if patterns or not chosen_publication else []


def parse_pattern(text: str, default_schema: str) -> TablePattern:
    """Returns a pattern that has a schema."""
    try:
        return TablePattern.parse(text).within(default_schema)
    except ValueError:
        raise UsageError(
            f"tables: {text!r} is not a table", "write 'table', 'schema.table' or 'schema.*', like 'public.orders'"
        ) from None


def parse_member_pattern(text: str, default_schema: str) -> TablePattern:
    """Parses a pattern that chooses among the tables of a group. If it matches several, and names no schema, it covers
    every schema."""
    pattern = parse_pattern(text, default_schema)
    written = TablePattern.parse(text)
    return pattern if written.name.is_name else written


async def matching_tables(source: Source, pattern: TablePattern) -> list[SourceTable]:
    """Returns the publishable tables that ``pattern``, which has a schema, matches. Raises UsageError without any."""
    assert pattern.schema is not None
    if pattern.schema.is_name and pattern.schema.name == TARGET_SCHEMA:
        raise UsageError(
            f"tables of schema {TARGET_SCHEMA} cannot be replicated: at a target that schema holds pgsluice's own tables",
            "remove them from tables, or move your tables to another schema",
        )
    parameters = {"schema": pattern.schema.like, "table": pattern.name.like, "is_name": pattern.is_name}
    found = await source.rows_of(SourceTable, _DOING, _COLUMNS + _NAMED, parameters)
    if not found:
        raise await _nothing_found(source, pattern, pattern.schema)
    if not pattern.is_name:
        oids = {table.oid for table in found}
        return [table for table in found if table.reason_to_leave_out is None and table.root_oid not in oids]
    [table] = found
    if table.obstacle is not None:
        cure = sql.SQL("ALTER TABLE {} SET LOGGED").format(sql.Identifier(table.schema, table.name)).as_string()
        is_unlogged = table.persistence == "u" and table.kind in "rp"
        raise UsageError(
            f"{table.qualified_name} is {table.obstacle}",
            f"only permanent, ordinary tables can be replicated{f': {cure}' if is_unlogged else ''}",
            statements=[cure] if is_unlogged else [],
        )
    return found


async def _nothing_found(source: Source, pattern: TablePattern, schema: NamePattern) -> UsageError:
    exists = await source.rows("looking up the schema", "SELECT FROM pg_namespace WHERE nspname LIKE %s", [schema.like])
    if not exists:
        return UsageError(f"schema {str(schema)!r} does not exist in the source", "check schema and tables (case matters)")
    if pattern.name.text == "*":
        return UsageError(f"schema {str(schema)!r} has no tables", "create one first, or name the tables to replicate")
    if not pattern.is_name:
        return UsageError(f"no table of the source is called '{schema}.{pattern.name}'", "check tables (case matters)")
    return UsageError(f"table '{schema}.{pattern.name}' does not exist in the source", "check tables (case matters)")


def check_replica_identity(tables: Iterable[SourceTable], operations: Iterable[str], publication: str = "") -> None:
    """Raises TerminalError when there are ``identity_errors``, with all of them."""
    raise_all(identity_errors(tables, operations, publication), "the source's tables")


def identity_errors(tables: Iterable[SourceTable], operations: Iterable[str], publication: str = "") -> list[TerminalError]:
    """Returns an error for each table of ``tables`` on which the application's own statements would fail when
    ``publication`` publishes ``operations``: an UPDATE or DELETE of a published table without replica identity is an
    error in PostgreSQL. Since 18 that includes an identity with unpublished generated columns; before, rows would come
    without their identity."""
    if not {"update", "delete"} & set(operations):
        return []
    unsent = [_unsent(name) for table in tables for name, senders in table.unsent if publication not in senders]
    return unsent + [
        TerminalError(
            f"without a primary key or replica identity: {name}; once published, UPDATE and DELETE of it fail",
            f"{cure}, or add a primary key, or set publish to [insert, truncate]",
            statements=[cure],
        )
        for table in tables
        for name, cure in zip(table.unidentified, table.identity_cures, strict=True)
    ]


def _unsent(name: str) -> TerminalError:
    return TerminalError(
        f"the replica identity of {name} has generated columns, which are not published: the identity of its rows would be"
        " missing, and since PostgreSQL 18 UPDATE and DELETE of it fail once it is published",
        "create a unique index on columns that are NOT NULL and not generated, and ALTER TABLE … REPLICA IDENTITY USING INDEX …;"
        " or, since PostgreSQL 18, replicate a custom publication that names them in its list of columns, or has"
        " publish_generated_columns = stored",
    )


# PostgreSQL asks for ownership of a table that is published (manual: CREATE PUBLICATION), which a member of the owning
# role has. No role should become a member of a superuser; its tables change hands instead.
_LACKING: LiteralString = """
    WITH wanted AS (SELECT c.relname, c.relowner, n.nspname, n.oid AS schema_oid,
                           pg_has_role(c.relowner, 'USAGE') AS is_owner, r.rolname, r.rolsuper
                      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
                     WHERE c.oid = ANY(%(oids)s::oid[]))
    SELECT format('GRANT CREATE ON DATABASE %%I TO %%I', current_database(), current_user) AS statement, 1 AS step
     WHERE %(creates)s AND NOT has_database_privilege(current_database(), 'CREATE')
    UNION
    SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I', nspname, current_user), 2
      FROM wanted WHERE NOT has_schema_privilege(schema_oid, 'USAGE')
    UNION
    SELECT CASE WHEN rolsuper THEN format('ALTER TABLE %%I.%%I OWNER TO %%I', nspname, relname, current_user)
                ELSE format('GRANT %%I TO %%I', rolname, current_user) END, 3
      FROM wanted WHERE NOT is_owner
     ORDER BY step, statement
"""


async def check_publisher(source: Source, tables: Collection[SourceTable], *, creates: bool) -> None:
    """Checks the privileges before a publication takes ``tables`` in; ``creates``: it is created for that. Raises
    TerminalError."""
    parameters = {"oids": [table.oid for table in tables], "creates": creates}
    rows = await source.rows("checking the role's privileges", _LACKING, parameters)
    if not rows:
        return
    statements = [statement for statement, _ in rows]
    more = f"; and {len(statements) - SHOWN} more like these" if len(statements) > SHOWN else ""
    raise TerminalError(
        f"the role may not publish the group's tables: it lacks {len(statements)} of the privileges that this takes",
        f"let an administrator run: {'; '.join(statements[:SHOWN])}{more}",
        statements=statements,
    )
