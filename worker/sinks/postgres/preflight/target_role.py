"""Obstacles of the target's server and role to any worker, whatever its tables: a start refuses them, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import sql
from psycopg.rows import class_row

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject, raise_errors
from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.own.own_tables import missing_tables, owner_errors
from pgsluice.worker.sinks.postgres.target.connection import Connection, connect, disable_foreign_keys

MINIMUM_SERVER_VERSION = 14

_ROLE: LiteralString = """
    SELECT current_setting('server_version_num')::int / 10000 AS major_version,
           current_database()::text AS database, current_user::text AS user,
           has_database_privilege(current_database(), 'CREATE') AS may_create_schemas,
           has_database_privilege(current_database(), 'TEMPORARY') AS may_create_temporary,
           n.oid IS NOT NULL AS has_schema,
           coalesce(has_schema_privilege(n.oid, 'USAGE'), true) AS may_use_schema,
           coalesce(has_schema_privilege(n.oid, 'CREATE'), true) AS may_create_tables
      FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname = %s
"""


@dataclass(frozen=True, slots=True)
class TargetRole:
    """``may_use_schema`` and ``may_create_tables`` are about pgsluice's schema, and true while it does not exist."""

    major_version: int
    database: str
    user: str
    may_create_schemas: bool
    may_create_temporary: bool
    has_schema: bool
    may_use_schema: bool
    may_create_tables: bool

    @property
    def name(self) -> str:
        """The name as SQL writes it."""
        return sql.Identifier(self.user).as_string()


def read_role(connection: Connection) -> TargetRole:
    with connection.cursor(row_factory=class_row(TargetRole)) as cursor:
        role: Any = cursor.execute(_ROLE, [TARGET_SCHEMA]).fetchone()
    assert isinstance(role, TargetRole)
    return role


def check_role(settings: PostgresSinkSettings) -> None:
    """Raises TerminalError with everything that the role lacks; UsageError or TransientError when it cannot connect."""
    with connect(settings, "pgsluice check") as connection:
        raise_errors(role_findings(connection, settings), "the target")


def role_findings(connection: Connection, settings: PostgresSinkSettings) -> Findings:
    """Returns findings about the role. Creates nothing; the session's ``session_replication_role`` may be another
    afterwards."""
    found, role = Findings(Subject.TARGET), read_role(connection)
    if role.major_version < MINIMUM_SERVER_VERSION:
        remedy = f"PostgreSQL {MINIMUM_SERVER_VERSION} or later is needed"
        found.note("target-version", Severity.ERROR, f"the target is PostgreSQL {role.major_version}", remedy)
    found.take(_lacking(role, bool(missing_tables(connection))))
    for error in owner_errors(connection):  # an administrator decides: a script must not take over a trap
        choices = error.statements
        found.note("target-schema-owner", Severity.ERROR, error.fact, error.remedy, choices=choices)
    with found.looking("target-disable-foreign-keys"):
        disable_foreign_keys(connection, settings.disable_foreign_keys)
    return found


def _lacking(role: TargetRole, misses_tables: bool) -> list[Finding]:
    database = sql.Identifier(role.database).as_string()
    lacks = []
    if not role.has_schema and not role.may_create_schemas:
        lacks.append(
            (f"create schema {TARGET_SCHEMA}, which holds its position", f"GRANT CREATE ON DATABASE {database} TO {role.name}")
        )
    if not role.may_use_schema:
        lacks.append((f"use schema {TARGET_SCHEMA}", f"GRANT USAGE ON SCHEMA {TARGET_SCHEMA} TO {role.name}"))
    if misses_tables and not role.may_create_tables:
        lacks.append((f"create tables in schema {TARGET_SCHEMA}", f"GRANT CREATE ON SCHEMA {TARGET_SCHEMA} TO {role.name}"))
    if not role.may_create_temporary:
        lacks.append(("make temporary tables", f"GRANT TEMPORARY ON DATABASE {database} TO {role.name}"))
    return [
        Finding.of(
            TerminalError(f"the target's role {role.user!r} may not {what}", f"run there: {grant}", statements=[grant]),
            "target-privileges",
            Subject.TARGET,
        )
        for what, grant in lacks
    ]
