"""The types of replicated columns that PostgreSQL does not bring itself, with the statements that make them at a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.source.source import Source
from pgsluice.shared.preflight.database import UserType, schema_creation
from pgsluice.shared.wire.table import Table

_MADE_OF: LiteralString = """
    SELECT t.typelem FROM pg_type t WHERE t.oid = w.oid AND t.typcategory = 'A' AND t.typelem <> 0
     UNION ALL SELECT t.typbasetype FROM pg_type t WHERE t.oid = w.oid AND t.typtype = 'd'
     UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = w.oid
     UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = w.oid
     UNION ALL SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
                WHERE t.oid = w.oid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
"""
"""The types that ``w.oid`` needs, directly."""

_DOMAIN: LiteralString = """
    format('CREATE DOMAIN %%I.%%I AS %%s', n.nspname, t.typname, format_type(t.typbasetype, t.typtypmod))
    || CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END
"""

_ENUM: LiteralString = """
    format('CREATE TYPE %%I.%%I AS ENUM (%%s)', n.nspname, t.typname,
           (SELECT string_agg(quote_literal(l.enumlabel), ', ' ORDER BY l.enumsortorder)
              FROM pg_enum l WHERE l.enumtypid = t.oid))
"""

_COMPOSITE: LiteralString = """
    (SELECT format('CREATE TYPE %%I.%%I AS (%%s)', n.nspname, t.typname,
                   (SELECT string_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
                      FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
       FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c')
"""
"""None for the type of a table's rows."""

_RANGE: LiteralString = """
    (SELECT format('CREATE TYPE %%I.%%I AS RANGE (subtype = %%s', n.nspname, t.typname, format_type(r.rngsubtype, -1))
            || CASE WHEN o.opcdefault THEN '' ELSE format(', subtype_opclass = %%I.%%I', os.nspname, o.opcname) END
            || coalesce((SELECT format(', subtype_diff = %%I.%%I', 'pg_catalog', p.proname) FROM pg_proc p
                          WHERE p.oid = r.rngsubdiff AND p.pronamespace = 'pg_catalog'::regnamespace), '')
            || (SELECT format(', multirange_type_name = %%I.%%I)', ms.nspname, m.typname)
                  FROM pg_type m JOIN pg_namespace ms ON ms.oid = m.typnamespace WHERE m.oid = r.rngmultitypid)
       FROM pg_range r JOIN pg_opclass o ON o.oid = r.rngsubopc JOIN pg_namespace os ON os.oid = o.opcnamespace
      WHERE r.rngtypid = t.oid AND r.rngcanonical = 0)
"""
"""None if a user's function canonicalizes values."""

_TYPES: LiteralString = f"""
    WITH RECURSIVE wanted (oid) AS (
        SELECT unnest(%s::oid[])
         UNION
        SELECT b.oid FROM wanted w CROSS JOIN LATERAL ({_MADE_OF}) b (oid))
    SELECT t.oid::bigint, (SELECT ms.nspname::text FROM pg_range r JOIN pg_type m ON m.oid = r.rngmultitypid
                             JOIN pg_namespace ms ON ms.oid = m.typnamespace WHERE r.rngtypid = t.oid) AS multirange_schema,
           ARRAY(SELECT b.oid::bigint FROM ({_MADE_OF}) b (oid)) AS made_of,
           n.nspname <> 'pg_catalog' AND (t.typcategory <> 'A' OR t.typtype = 'd') AND t.typtype <> 'm' AS is_users,
           format_type(t.oid, -1) AS name, n.nspname::text AS schema, coalesce(e.extname::text, '') AS extension,
           coalesce(CASE t.typtype WHEN 'e' THEN {_ENUM} WHEN 'd' THEN {_DOMAIN} WHEN 'c' THEN {_COMPOSITE} WHEN 'r' THEN {_RANGE}
                    END, '') AS creation,
           ARRAY(SELECT format('ALTER DOMAIN %%I.%%I ADD CONSTRAINT %%I %%s', n.nspname, t.typname, c.conname,
                               pg_get_constraintdef(c.oid))
                   FROM pg_constraint c WHERE c.contypid = t.oid AND c.contype = 'c' AND c.convalidated
                  ORDER BY c.conname) AS checks
      FROM wanted w JOIN pg_type t ON t.oid = w.oid JOIN pg_namespace n ON n.oid = t.typnamespace
      LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
      LEFT JOIN pg_extension e ON e.oid = d.refobjid
     ORDER BY name
"""
"""Rows may violate a CHECK that was not validated, so a target is not to have it."""


@dataclass(frozen=True, slots=True, eq=False)
class _UserTypeRow:
    """``made_of`` are the types that it needs. ``is_users``: it is reported; arrays and multiranges come with others."""

    oid: int
    multirange_schema: str | None
    made_of: list[int]
    is_users: bool
    name: str
    schema: str
    extension: str
    creation: str
    checks: list[str]


async def read_user_types(source: Source, tables: Sequence[Table]) -> list[UserType]:
    """Returns each type once, after the types that it is made of."""
    oids = sorted({column.type_oid for table in tables for column in table.columns})
    rows = await source.rows_of(_UserTypeRow, "looking up the types", _TYPES, [oids])
    by_oid, wanted = {row.oid: row for row in rows}, set(oids)
    found = dict.fromkeys(row for first in rows if first.oid in wanted for row in _in_order(first, by_oid))
    return [UserType(row.name, row.schema, row.extension, _creations(row), tuple(row.checks)) for row in found if row.is_users]


def _in_order(row: _UserTypeRow, by_oid: Mapping[int, _UserTypeRow]) -> Iterator[_UserTypeRow]:
    """Yields a type after its parts; an extension's types come with the extension."""
    if not row.extension:
        for oid in row.made_of:
            yield from _in_order(by_oid[oid], by_oid)
    yield row


def _creations(row: _UserTypeRow) -> tuple[str, ...]:
    schema = sql.Identifier(row.schema).as_string()
    schemas = dict.fromkeys([row.schema, row.multirange_schema or row.schema])
    made = tuple(schema_creation(sql.Identifier(name).as_string()) for name in schemas if name != "public")
    if row.extension:
        extension = sql.Identifier(row.extension).as_string()
        return (*made, f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA {schema}")
    return (*made, row.creation) if row.creation else ()
