"""COPY text that waits at the target in one table for each partition, for any tables.

A separate stage takes up to three locks at the target. A batch over many tables would need more of them than the target
has, so beyond some stages the text is parked: the driver fetches it piece by piece when it merges, and continues as if
it had come in the receipt. That is slower, but takes three locks, however many pieces there are.

The table is unlogged: after a crash of the target it is empty, which the fetched sizes show.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from pgsluice.shared.errors import Cause, TransientError
from pgsluice.worker.sinks.postgres.fold.piece import ParkedText
from pgsluice.worker.sinks.postgres.own.own_tables import DDL_LOCK, own_table
from pgsluice.worker.sinks.postgres.target.connection import Connection

CHUNK_BYTES = 1024 * 1024

_CREATE = sql.SQL(
    "CREATE UNLOGGED TABLE {} (name text NOT NULL, chunk integer NOT NULL, content bytea STORAGE EXTERNAL NOT NULL,"
    " PRIMARY KEY (name, chunk)) WITH (autovacuum_enabled = off)"
)


def ensure_parked_table(connection: Connection, name: str) -> None:
    """Several tasks may ask at the same time; not to be called in a transaction."""
    if _exists(connection, name):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        if not _exists(connection, name):
            connection.execute(_CREATE.format(own_table(name)))


def _exists(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [own_table(name).as_string()]).fetchone() == (True,)


def park(connection: Connection, table: str, name: str, text: bytes) -> ParkedText:
    """``name`` is no other text's in the ``table``."""
    copy_in = sql.SQL("COPY {} FROM STDIN WITH (FORMAT binary)").format(own_table(table))
    with connection.cursor() as cursor, cursor.copy(copy_in) as copy:
        copy.set_types(["text", "int4", "bytea"])
        for chunk, start in enumerate(range(0, len(text), CHUNK_BYTES)):
            copy.write_row((name, chunk, text[start : start + CHUNK_BYTES]))
    return ParkedText(table, name, len(text))


def fetch(connection: Connection, parked: ParkedText) -> bytes:
    """Raises TransientError when some of it is missing: then the rows have to be written again."""
    query = sql.SQL("SELECT content FROM {} WHERE name = %s ORDER BY chunk").format(own_table(parked.table))
    with connection.cursor(binary=True) as cursor:
        text = b"".join(content for (content,) in cursor.execute(query, [parked.name]))
    if len(text) != parked.size:
        raise rows_gone()
    return text


def check_parked(connection: Connection, tables: Iterable[str]) -> None:
    """Raises TransientError when one of the tables is missing."""
    for table in tables:
        if not _exists(connection, table):
            raise rows_gone()


def rows_gone() -> TransientError:
    return TransientError(
        "staged rows are gone from the target, as after a crash of it", "the batch is staged again", Cause.TARGET
    )
