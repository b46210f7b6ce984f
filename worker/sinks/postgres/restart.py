"""Emptying a table that is copied anew."""

from __future__ import annotations

import psycopg
from psycopg import sql

from worker.sinks.postgres.connection import Connection
from worker.sinks.postgres.failure import PieceError
from worker.sinks.postgres.target_table import TargetTable

_SHAPE = """
SELECT c.relkind = 'p', EXISTS (SELECT FROM pg_constraint r WHERE r.contype = 'f' AND r.confrelid = c.oid AND r.conrelid <> c.oid)
FROM pg_class c WHERE c.oid = %s
"""


def empty_table(connection: Connection, target: TargetTable) -> None:
    """Partitions belong to the table, other children do not. TRUNCATE is refused for a table that foreign keys of others point
    to, even where they are disabled; its rows are deleted. Raises PieceError."""
    try:
        shape = connection.execute(_SHAPE, [target.oid]).fetchone()
        is_partitioned, is_referenced = shape or (False, False)
        only = sql.SQL("" if is_partitioned else "ONLY ")
        statement = sql.SQL("DELETE FROM {}{}" if is_referenced else "TRUNCATE TABLE {}{}")
        connection.execute(statement.format(only, target.identifier))
    except psycopg.Error as error:
        raise PieceError(target.table, error) from None
