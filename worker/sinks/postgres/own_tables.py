"""Our own tables in the target, in schema ``pgsluice``: made at the first start, and brought up to date at every one.

applied        the workers' positions (``applied``)
copied         which messages of a snapshot are loaded, beyond the position (``copied_messages``)
pending_keys   keys of tables that are being filled, to be built when they are full (``pending_keys``)
"""

from __future__ import annotations

from psycopg import sql

from shared.names import TARGET_SCHEMA
from worker.sinks.postgres.connection import Connection

DDL_LOCK = 0x706773_6C75_6963
"""Key of the advisory lock that whoever creates objects in the target holds, so that two never create the same one."""

_DEFINITIONS = {
    "applied": """
CREATE TABLE {} (
    group_name text NOT NULL,
    worker text NOT NULL,
    sequence bigint NOT NULL,
    commit_lsn pg_lsn NOT NULL,
    committed_at timestamptz NOT NULL,
    stream_created text NOT NULL,
    batches bigint NOT NULL,
    changes bigint NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (group_name, worker)
)
""",
    "copied": """
CREATE TABLE {} (
    group_name text NOT NULL,
    worker text NOT NULL,
    sequence bigint NOT NULL,
    PRIMARY KEY (group_name, worker, sequence),
    FOREIGN KEY (group_name, worker) REFERENCES pgsluice.applied ON DELETE CASCADE
)
""",
    "pending_keys": """
CREATE TABLE {} (
    group_name text NOT NULL,
    worker text NOT NULL,
    table_schema text NOT NULL,
    table_name text NOT NULL,
    columns text[] NOT NULL,
    is_primary boolean NOT NULL,
    PRIMARY KEY (group_name, worker, table_schema, table_name, is_primary)
)
""",
}
_ADDED_COLUMNS = {
    "snapshot_sequence": "ALTER TABLE {} ADD COLUMN snapshot_sequence bigint NOT NULL DEFAULT 0",
    "copied_rows": "ALTER TABLE {} ADD COLUMN copied_rows bigint NOT NULL DEFAULT 0",
    "rules": "ALTER TABLE {} ADD COLUMN rules text NOT NULL DEFAULT ''",
}
"""Of ``applied``, which an earlier version may have made without them."""

_HAS_COLUMN = "SELECT FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s AND NOT attisdropped"


def ensure_tables(connection: Connection) -> None:
    """Makes what is missing. What is there is only looked at: a user who may not create anything can be given it."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        if connection.execute("SELECT to_regnamespace(%s)", [TARGET_SCHEMA]).fetchone() == (None,):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(TARGET_SCHEMA)))
        for name, definition in _DEFINITIONS.items():
            if connection.execute("SELECT to_regclass(%s)", [f"{TARGET_SCHEMA}.{name}"]).fetchone() == (None,):
                connection.execute(sql.SQL(definition).format(sql.Identifier(TARGET_SCHEMA, name)))
        for column, statement in _ADDED_COLUMNS.items():
            if connection.execute(_HAS_COLUMN, [f"{TARGET_SCHEMA}.applied", column]).rowcount == 0:
                connection.execute(sql.SQL(statement).format(sql.Identifier(TARGET_SCHEMA, "applied")))
