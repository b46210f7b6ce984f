"""pgsluice's own tables in the target, in schema ``pgsluice``: created at the first start, and brought up to date at every one.

applied        the workers' positions (``applied``)
copied         which messages of a snapshot are loaded, beyond the position (``applied``)
pending_keys   keys of tables that are being filled, to be built when they are full (``pending_keys``)
tables         the source's tables with their destinations, and changes that met no row (``known_tables``)
"""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from pgsluice.shared.errors import USE_THE_NEWER_VERSION, TerminalError
from pgsluice.shared.preflight.finding import raise_all
from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.worker.sinks.postgres.target.connection import Connection

DDL_LOCK = 0x706773_6C75_6963
"""Key of the advisory lock for creating objects in the target, so that two workers never create the same one."""

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
    "tables": """
CREATE TABLE {} (
    group_name text NOT NULL,
    worker text NOT NULL,
    oid oid NOT NULL,
    table_schema text NOT NULL,
    table_name text NOT NULL,
    source_schema text NOT NULL,
    source_name text NOT NULL,
    target_oid oid NOT NULL,
    target_database text NOT NULL,
    column_names text[] NOT NULL,
    column_numbers smallint[] NOT NULL,
    column_types jsonb,
    source_numbers jsonb,
    missed bigint NOT NULL DEFAULT 0,
    missed_since timestamptz,
    missed_updates bigint NOT NULL DEFAULT 0,
    missed_deletes bigint NOT NULL DEFAULT 0,
    missed_positions text[] NOT NULL DEFAULT ARRAY[]::text[],
    PRIMARY KEY (group_name, worker, oid, table_schema, table_name)
)
""",
}
_ADDED_COLUMNS = (
    ("applied", "snapshot_sequence", "bigint NOT NULL DEFAULT 0"),
    ("applied", "copied_rows", "bigint NOT NULL DEFAULT 0"),
    ("applied", "rules", "text NOT NULL DEFAULT ''"),
    ("applied", "catch_up", "text NOT NULL DEFAULT ''"),
    ("applied", "run", "bigint NOT NULL DEFAULT 0"),
    ("applied", "run_unchanged", "bigint NOT NULL DEFAULT 0"),
    ("copied", "unchanged", "bigint NOT NULL DEFAULT 0"),
    ("tables", "column_types", "jsonb"),
    ("tables", "missed_updates", "bigint NOT NULL DEFAULT 0"),
    ("tables", "missed_deletes", "bigint NOT NULL DEFAULT 0"),
    ("tables", "missed_positions", "text[] NOT NULL DEFAULT ARRAY[]::text[]"),
    ("tables", "source_numbers", "jsonb"),
)
"""Columns that tables of an earlier version may lack."""

_HAS_COLUMN = "SELECT FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s AND NOT attisdropped"

_FORMAT = 1
"""A version whose tables an earlier one would misread writes another one into the comment of ``applied``, as ``format 2``, and
then no earlier one touches them; without it the format is this one."""
_FORMAT_OF = "SELECT substring(obj_description(to_regclass(%s), 'pg_class') FROM '^format ([0-9]+)')"

_FOREIGN: LiteralString = """
WITH ours AS (
    SELECT 'SCHEMA' AS kind, quote_ident(nspname) AS name, nspowner AS owner FROM pg_namespace WHERE nspname = %(schema)s
    UNION ALL
    SELECT 'TABLE', quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relowner
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND c.relname = ANY (%(tables)s))
SELECT ours.kind, ours.name, owner.rolname, me.rolname
FROM ours JOIN pg_roles owner ON owner.oid = ours.owner CROSS JOIN pg_roles me
WHERE me.rolname = current_user AND NOT owner.rolsuper AND owner.oid <> me.oid
  AND (me.rolsuper OR NOT pg_has_role(owner.oid, 'MEMBER'))
"""
"""Objects with pgsluice's names and other owners. A superuser is a member of every role, so membership is no sign of
trust."""


_MISSING = """
SELECT name FROM unnest(%s::text[]) AS name
WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = name)
"""
"""Finds missing tables without to_regclass, which needs USAGE of the schema."""


def own_table(name: str) -> sql.Identifier:
    return sql.Identifier(TARGET_SCHEMA, name)


def ensure_tables(connection: Connection) -> None:
    """Creates missing tables. Existing ones are only checked: a user who may not create anything can be given them.
    Raises TerminalError when another role could have put anything into them, or when they have another format."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        check_owners(connection)
        if connection.execute("SELECT to_regnamespace(%s)", [TARGET_SCHEMA]).fetchone() == (None,):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(TARGET_SCHEMA)))
        _check_format(connection)
        for name, definition in _DEFINITIONS.items():
            if connection.execute("SELECT to_regclass(%s)", [f"{TARGET_SCHEMA}.{name}"]).fetchone() == (None,):
                connection.execute(sql.SQL(definition).format(own_table(name)))
        for table, column, definition in _ADDED_COLUMNS:
            if connection.execute(_HAS_COLUMN, [f"{TARGET_SCHEMA}.{table}", column]).rowcount == 0:
                names = own_table(table), sql.Identifier(column), sql.SQL(definition)
                connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(*names))


def _check_format(connection: Connection) -> None:
    [(found,)] = connection.execute(_FORMAT_OF, [f"{TARGET_SCHEMA}.applied"]).fetchall()
    if found not in (None, str(_FORMAT)):
        fact = f"the target's tables of schema {TARGET_SCHEMA} have format {found}, and this version reads {_FORMAT}"
        raise TerminalError(fact, USE_THE_NEWER_VERSION)


def missing_tables(connection: Connection) -> list[str]:
    """Returns the tables that ``ensure_tables`` would create; all of them while there is no schema."""
    return [name for (name,) in connection.execute(_MISSING, [list(_DEFINITIONS), TARGET_SCHEMA]).fetchall()]


def check_owners(connection: Connection) -> None:
    """Raises TerminalError when another role owns an object with pgsluice's name. Triggers and rules of a table's owner
    run as the worker's role, and a schema's owner can exchange its tables."""
    raise_all(owner_errors(connection), "the target's schema pgsluice")


def owner_errors(connection: Connection) -> list[TerminalError]:
    """Returns errors about owners. The statement of each is for administrators who have inspected the object."""
    found = connection.execute(_FOREIGN, {"schema": TARGET_SCHEMA, "tables": list(_DEFINITIONS)}).fetchall()
    return [_foreign(*row) for row in found]


def _foreign(kind: str, name: str, owner: str, user: str) -> TerminalError:
    statement = f"ALTER {kind} {name} OWNER TO {sql.Identifier(user).as_string()}"
    return TerminalError(
        f"{kind.lower()} {name} of the target belongs to '{owner}', who could run anything as '{user}' through it",
        f"drop it if no program needs it; otherwise check its triggers and rules, then run: {statement}",
        statements=[statement],
    )
