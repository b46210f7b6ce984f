"""SQL for what the catalog says of a column, where more than one query asks."""

from __future__ import annotations

from typing import LiteralString

from pgsluice.shared.postgres.collation import NONDETERMINISTIC

NOT_NULL: LiteralString = """
    a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                                               AND v.conkey = ARRAY[a.attnum] AND NOT v.convalidated)
"""
"""Of a row ``a`` of pg_attribute, whether no row of the table has NULL there. Since PostgreSQL 18 a NOT NULL may be NOT VALID:
nothing is known of rows that were there before it."""

COLLATION: LiteralString = (
    "coalesce((SELECT " + NONDETERMINISTIC.format("k") + " FROM pg_collation k WHERE k.oid = a.attcollation), '')"
)
"""Of the same row, what ``wire.table.Column`` has."""
