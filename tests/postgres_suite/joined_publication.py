"""One publication for a group in the place of several of a subscription that share tables, as an administrator would write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.Connection[tuple[Any, ...]]

# Rows of a table that one publication does not filter are all sent, others if one of the filters lets them through; so it is with
# columns. A partition is left out where its root is published as such.
_TABLES = """
SELECT format('%%I.%%I', schemaname, tablename),
       CASE WHEN bool_or(cardinality(attnames) >= columns) THEN NULL ELSE string_agg(DISTINCT quote_ident(a), ', ') END,
       CASE WHEN bool_or(rowfilter IS NULL) THEN NULL ELSE string_agg(DISTINCT rowfilter, ' OR ') END
FROM (SELECT t.*, c.oid, (SELECT count(*) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
                          AND attgenerated = '') AS columns
      FROM pg_publication_tables t JOIN pg_class c ON c.oid = format('%%I.%%I', schemaname, tablename)::regclass
      WHERE pubname = ANY (%(names)s)) AS t, unnest(t.attnames) AS a
WHERE NOT EXISTS (SELECT FROM pg_partition_ancestors(t.oid) AS above(id) JOIN pg_class r ON r.oid = above.id AND r.oid <> t.oid
                  JOIN pg_namespace n ON n.oid = r.relnamespace
                  JOIN pg_publication_tables p ON p.schemaname = n.nspname AND p.tablename = r.relname
                  WHERE p.pubname = ANY (%(names)s))
GROUP BY schemaname, tablename ORDER BY 1
"""
_SHARED = """
SELECT count(*) - count(DISTINCT (schemaname, tablename)) FROM pg_publication_tables WHERE pubname = ANY (%s)
"""
_OPTIONS = """
SELECT concat_ws(', ', CASE WHEN bool_or(pubinsert) THEN 'insert' END, CASE WHEN bool_or(pubupdate) THEN 'update' END,
                 CASE WHEN bool_or(pubdelete) THEN 'delete' END, CASE WHEN bool_or(pubtruncate) THEN 'truncate' END),
       bool_or(pubviaroot)::text
FROM pg_publication WHERE pubname = ANY (%s)
"""


@dataclass(slots=True)
class JoinedPublication:
    name: str
    names: list[str]
    written: str = ""

    def write(self, connection: Connection) -> None:
        """Makes it, or makes it fit what its parts publish now."""
        parts = {"names": self.names}
        tables = [
            f"ONLY {table}" + (f" ({columns})" if columns else "") + (f" WHERE ({rows})" if rows else "")
            for table, columns, rows in connection.execute(_TABLES, parts).fetchall()
        ]
        operations, via_root = connection.execute(_OPTIONS, [self.names]).fetchone() or ("", "false")
        options = f"publish = '{operations}', publish_via_partition_root = {via_root}"
        wanted = f"{', '.join(tables)} {options}"
        if wanted == self.written:
            return
        name = sql.Identifier(self.name).as_string(connection)
        if not self.written:
            connection.execute(f"CREATE PUBLICATION {name}".encode())
        connection.execute(f"ALTER PUBLICATION {name} SET ({options})".encode())
        if tables:
            connection.execute(f"ALTER PUBLICATION {name} SET TABLE {', '.join(tables)}".encode())
        self.written = wanted


def share_tables(connection: Connection, names: list[str]) -> bool:
    return connection.execute(_SHARED, [names]).fetchone() != (0,)
