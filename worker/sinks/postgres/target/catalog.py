"""Facts about tables from the target's system catalog. A group may have hundreds: all are read in a handful of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgsluice.shared.postgres.collation import NONDETERMINISTIC
from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.target.connection import Connection

_FIND = """
SELECT n.nspname, c.relname, c.oid, c.relkind, row_security_active(c.oid), c.relhasrules, c.relhastriggers OR c.relkind = 'p',
       EXISTS (SELECT FROM pg_collation WHERE NOT collisdeterministic)
FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
JOIN pg_namespace n ON n.nspname = wanted.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
"""
_COLUMNS = f"""
SELECT a.attrelid, a.attname, a.attnum, a.attnotnull, a.attgenerated, a.attidentity, a.atthasdef OR t.typdefault IS NOT NULL,
       CASE WHEN t.typtype = 'e' THEN true
            WHEN a.atttypid = 'numeric'::regtype THEN a.atttypmod <> -1
            WHEN a.attcollation <> 0 THEN coalesce(c.collisdeterministic, false) AND a.atttypid = ANY (%(strings)s::regtype[])
            ELSE a.atttypid = ANY (%(exact)s::regtype[])
       END,
       CASE WHEN base.depth > 0 THEN format_type(base.type, base.typmod) ELSE '' END,
       coalesce((SELECT quote_ident(n.nspname) || '.' || o.oprname
                 FROM pg_opclass k JOIN pg_am m ON m.oid = k.opcmethod AND m.amname = 'btree'
                 JOIN pg_amop p ON p.amopfamily = k.opcfamily AND p.amoplefttype = k.opcintype AND p.amoprighttype = k.opcintype
                               AND p.amopstrategy = 3
                 JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
                 WHERE k.opcdefault AND k.opcintype = base.type AND n.nspname <> 'pg_catalog'), ''),
       format_type(base.type, base.typmod), coalesce({NONDETERMINISTIC.format("c")}, ''),
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                                                  AND v.conkey = ARRAY[a.attnum] AND NOT v.convalidated)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
CROSS JOIN LATERAL (
    WITH RECURSIVE below (type, typmod, depth) AS (
        SELECT a.atttypid, a.atttypmod, 0
        UNION ALL
        SELECT b.typbasetype, b.typtypmod, depth + 1 FROM below JOIN pg_type b ON b.oid = below.type WHERE b.typtype = 'd')
    SELECT type, typmod, depth FROM below ORDER BY depth DESC LIMIT 1) AS base
WHERE a.attrelid = ANY (%(tables)s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum
"""
_FOLDING_INDEXES = f"""
SELECT i.indrelid, i.indexrelid::regclass::text, a.attname, {NONDETERMINISTIC.format("c")},
       ARRAY(SELECT e.attname FROM unnest(i.indkey[:i.indnkeyatts - 1]) AS k(attnum)
             JOIN pg_attribute e ON e.attrelid = i.indrelid AND e.attnum = k.attnum)
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey[:i.indnkeyatts - 1], i.indcollation[:i.indnkeyatts - 1]) AS k(attnum, collated)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
JOIN pg_collation c ON c.oid = k.collated AND NOT c.collisdeterministic AND c.oid <> a.attcollation
WHERE i.indrelid = ANY (%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_EXACT_TYPES = ["boolean", "bytea", "smallint", "integer", "bigint", "oid", "date", "timestamp", "timestamptz", "uuid"]
_EXACT_STRINGS = ["text", "varchar", "bpchar", "name"]
"""String types that compare exactly with a deterministic collation. Floats have -0, intervals have 30 days for a month,
json and point have no equality."""
_REFERENCES = """
SELECT DISTINCT own.root, referred.oid
FROM (SELECT root, root FROM unnest(%(tables)s::oid[]) AS t(root)
      UNION SELECT root, relid FROM unnest(%(tables)s::oid[]) AS t(root), pg_partition_tree(root)) AS own(root, oid)
JOIN pg_constraint r ON r.conrelid = own.oid AND r.contype = 'f'
CROSS JOIN LATERAL (SELECT r.confrelid UNION SELECT relid FROM pg_partition_ancestors(r.confrelid)) AS referred(oid)
"""
"""Selects references. A foreign key of a partition, or to one, is the whole table's too. Only a table with triggers has
any, or a partition."""
_PARTITION_COLUMNS = """
SELECT p.partrelid, a.attname
FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs)
WHERE p.partrelid = ANY (%s) ORDER BY p.partrelid, a.attnum
"""

_UNIQUE_KEYS = """
SELECT i.indrelid, ARRAY(SELECT a.attname FROM unnest(i.indkey[:i.indnkeyatts - 1]) AS k(attnum)
                         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum)
FROM pg_index i
WHERE i.indrelid = ANY (%s) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND NOT i.indisexclusion  -- a key WITHOUT OVERLAPS (PostgreSQL 18) is unique too, and no ON CONFLICT names it
"""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """``number`` is its ``attnum``, 0 for a missing column. ``exact``, ``domain_type`` and ``equality`` are as in
    ``TargetTable``. ``type_name`` is its type's name, of a domain the base type's; ``collation`` is as in
    ``wire.table.Column``. ``holds_no_null`` is false where a NOT NULL is not valid, and checked for new rows only."""

    name: str
    number: int
    not_null: bool
    generated: str
    identity: str
    has_default: bool
    exact: bool
    domain_type: str
    equality: str
    type_name: str
    collation: str
    holds_no_null: bool


LEFT_OUT = TargetColumn("", 0, False, "left out", "", True, False, "", "", "", "", False)
"""Replaces a column that the target must not have. It is never written, like a generated one."""


@dataclass(frozen=True, slots=True)
class FoldingIndex:
    """A unique index of ``columns`` that ON CONFLICT goes by too, in which values of ``column`` compare by a nondeterministic
    collation that the column itself does not have."""

    name: str
    column: str
    collation: str
    columns: Collection[str]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One relation. ``kind`` is its ``relkind``; ``unique_keys`` are the columns of each unique index that ON CONFLICT
    can use; ``partition_columns`` the columns that the rows of a partitioned table are distributed by, empty for
    another table; ``has_row_security``: policies apply to this role; ``has_rules``: it has rules (CREATE RULE), or has
    had some."""

    oid: int
    kind: str
    columns: Sequence[TargetColumn]
    references: frozenset[int]
    unique_keys: Sequence[set[str]]
    partition_columns: Sequence[str]
    folding_indexes: Sequence[FoldingIndex]
    has_row_security: bool
    has_rules: bool


Catalog = Mapping[tuple[str, str], CatalogEntry]
"""Entries by schema and name; without missing tables."""


_WITH_FOREIGN_KEYS = """
    SELECT DISTINCT n.nspname || '.' || r.relname
      FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid JOIN pg_namespace n ON n.oid = r.relnamespace
     WHERE c.contype = 'f' AND n.nspname <> %s ORDER BY 1 LIMIT 10
"""


def read_catalog(connection: Connection, tables: Collection[Table]) -> Catalog:
    return _read(connection, [(table.schema, table.name) for table in tables])


def find_table(connection: Connection, schema: str, name: str) -> CatalogEntry | None:
    return _read(connection, [(schema, name)]).get((schema, name))


def unique_keys(connection: Connection, oids: Sequence[int]) -> dict[int, list[set[str]]]:
    """Returns, by table, the columns of each of its unique indexes that ON CONFLICT can use. Leaves out tables without
    one."""
    found: dict[int, list[set[str]]] = {}
    for oid, columns in connection.execute(_UNIQUE_KEYS, [list(oids)]).fetchall():
        found.setdefault(oid, []).append(set(columns))
    return found


def tables_with_foreign_keys(connection: Connection) -> list[str]:
    """Returns the names of some, at most ten."""
    return [str(name) for (name,) in connection.execute(_WITH_FOREIGN_KEYS, [TARGET_SCHEMA]).fetchall()]


def _read(connection: Connection, names: Collection[tuple[str, str]]) -> Catalog:
    wanted = [[schema for schema, _ in names], [name for _, name in names]]
    found = connection.execute(_FIND, wanted).fetchall()
    oids = [oid for _, _, oid, *_ in found]
    parameters = {"tables": oids, "exact": _EXACT_TYPES, "strings": _EXACT_STRINGS}
    columns = _by_oid(connection.execute(_COLUMNS, parameters).fetchall())
    references, partition_columns, folding_indexes = _by_oid(), _by_oid(), _by_oid()
    referring = [oid for _, _, oid, _, _, _, may_refer, _ in found if may_refer]
    if referring:
        references = _by_oid(connection.execute(_REFERENCES, {"tables": referring}).fetchall())
    partitioned = [oid for _, _, oid, kind, *_ in found if kind == "p"]
    if partitioned:
        partition_columns = _by_oid(connection.execute(_PARTITION_COLUMNS, [partitioned]).fetchall())
    if any(may_fold for *_, may_fold in found):
        folding_indexes = _by_oid(connection.execute(_FOLDING_INDEXES, [oids]).fetchall())
    keys = unique_keys(connection, oids)
    return {
        (schema, name): CatalogEntry(
            oid,
            kind,
            columns=[TargetColumn(*column) for column in columns[oid]],
            references=frozenset(referred for (referred,) in references[oid]),
            unique_keys=keys.get(oid, []),
            partition_columns=[column for (column,) in partition_columns[oid]],
            folding_indexes=[FoldingIndex(*index) for index in folding_indexes[oid]],
            has_row_security=has_row_security,
            has_rules=has_rules,
        )
        for schema, name, oid, kind, has_row_security, has_rules, *_ in found
    }


def _by_oid(rows: Sequence[tuple[Any, ...]] = ()) -> dict[int, list[tuple[Any, ...]]]:
    """Returns the rest of each row, by its first column."""
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for oid, *rest in rows:
        found[oid].append(tuple(rest))
    return found
