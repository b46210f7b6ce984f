"""Tables of the target that hold rows before the first one comes: a copy overwrites those of its keys, and leaves others."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgsluice.shared.preflight.finding import listed
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.target.catalog import CatalogEntry, read_catalog
from pgsluice.worker.sinks.postgres.target.connection import Connection


def held_already(connection: Connection, tables: Sequence[Table]) -> list[str]:
    """Returns a sentence that names them, when there are any."""
    catalog = read_catalog(connection, tables)
    places = {(table.schema, table.name): table.qualified_name for table in tables}
    found = [name for place, name in places.items() if place in catalog and holds_rows(connection, place, catalog[place])]
    if not found:
        return []
    return [f"tables of the target hold rows already, which stay there unless a row of their key comes: {listed(found)}"]


def holds_rows(connection: Connection, place: tuple[str, str], entry: CatalogEntry) -> bool:
    """Returns False for a table that the role may not read: other findings are about that."""
    if entry.kind not in ("r", "p"):
        return False
    try:
        with connection.transaction():
            return connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(sql.Identifier(*place))).rowcount > 0
    except psycopg.errors.InsufficientPrivilege:
        return False
