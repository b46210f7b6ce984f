"""SQL for a column's facts in the catalog that several queries need."""

from __future__ import annotations

from typing import LiteralString

from pgsluice.shared.postgres.collation import NONDETERMINISTIC

NOT_NULL: LiteralString = """
    a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                                               AND v.conkey = ARRAY[a.attnum] AND NOT v.convalidated)
"""
"""SQL condition: no row of the table has NULL in the column, a row ``a`` of pg_attribute. Since PostgreSQL 18 a NOT
NULL may be NOT VALID: then rows that existed before are unchecked."""

COLLATION: LiteralString = (
    "coalesce((SELECT " + NONDETERMINISTIC.format("k") + " FROM pg_collation k WHERE k.oid = a.attcollation), '')"
)
"""SQL for ``wire.table.Column``'s collation, of the same row."""
