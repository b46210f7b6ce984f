"""The types of replicated columns that PostgreSQL does not bring itself, with the statements that make them at a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.source.source import Source
from pgsluice.shared.preflight.database import UserType, schema_creation
from pgsluice.shared.wire.table import Table

_TYPES: LiteralString = """
    WITH wanted AS (SELECT DISTINCT CASE WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN t.typelem ELSE t.oid END AS oid
                      FROM pg_type t WHERE t.oid = ANY(%s::oid[]))
    SELECT format_type(t.oid, NULL) AS name, n.nspname::text AS schema, coalesce(e.extname::text, '') AS extension,
           CASE t.typtype
                WHEN 'e' THEN format('CREATE TYPE %%I.%%I AS ENUM (%%s)', n.nspname, t.typname,
                                     (SELECT string_agg(quote_literal(l.enumlabel), ', ' ORDER BY l.enumsortorder)
                                        FROM pg_enum l WHERE l.enumtypid = t.oid))
                WHEN 'd' THEN format('CREATE DOMAIN %%I.%%I AS %%s', n.nspname, t.typname,
                                     format_type(t.typbasetype, t.typtypmod))
                              || CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END
                ELSE '' END AS creation,
           ARRAY(SELECT format('ALTER DOMAIN %%I.%%I ADD CONSTRAINT %%I %%s', n.nspname, t.typname, c.conname,
                               pg_get_constraintdef(c.oid))
                   FROM pg_constraint c WHERE c.contypid = t.oid AND c.contype = 'c' ORDER BY c.conname) AS checks
      FROM wanted w JOIN pg_type t ON t.oid = w.oid JOIN pg_namespace n ON n.oid = t.typnamespace
      LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
      LEFT JOIN pg_extension e ON e.oid = d.refobjid
     WHERE n.nspname <> 'pg_catalog'
     ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    schema: str
    extension: str
    creation: str
    checks: list[str]


async def read_user_types(source: Source, tables: Sequence[Table]) -> list[UserType]:
    """Each once, by name; the elements of arrays, not the arrays, which come with them."""
    oids = sorted({column.type_oid for table in tables for column in table.columns})
    rows = await source.rows_of(_Row, "looking up the types", _TYPES, [oids])
    return [UserType(row.name, row.schema, row.extension, _creations(row), tuple(row.checks)) for row in rows]


def _creations(row: _Row) -> tuple[str, ...]:
    schema = sql.Identifier(row.schema).as_string()
    made = () if row.schema == "public" else (schema_creation(schema),)
    if row.extension:
        extension = sql.Identifier(row.extension).as_string()
        return (*made, f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA {schema}")
    return (*made, row.creation) if row.creation else ()
