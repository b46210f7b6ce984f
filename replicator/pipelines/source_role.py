"""The rights that the role of a pipeline's source has besides reading.

The author of a pipeline chooses what that role runs, and a read-only transaction does not bind all that PostgreSQL lets a role
do: it may move and drop replication slots, end sessions, read the server's files, or use other databases through dblink. A
query may also become each role of which this one is a member (``set_config('role', ...)``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import UsageError

_STRONG_ROLES = (
    "pg_checkpoint",
    "pg_create_subscription",
    "pg_execute_server_program",
    "pg_maintain",
    "pg_read_server_files",
    "pg_signal_backend",
    "pg_write_all_data",
    "pg_write_server_files",
)

_OUTWARD = ("aws_lambda", "aws_s3", "dblink", "http")
"""Extensions whose functions reach other servers at once, from a transaction that only reads too."""

_ROLE: LiteralString = """
    SELECT r.rolname::text AS name,
           CASE WHEN r.rolsuper THEN ARRAY['is a superuser'] ELSE
               array_remove(ARRAY[
                   CASE WHEN r.rolreplication THEN 'has REPLICATION' END,
                   CASE WHEN r.rolcreaterole THEN 'has CREATEROLE' END,
                   CASE WHEN EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                                      WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^(pg_|information_schema$)'
                                        AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'))
                        THEN 'may write tables' END], NULL)
               || ARRAY(SELECT 'is a member of ' || m.rolname FROM pg_roles m
                         WHERE (m.rolname = ANY(%(strong)s) OR m.rolsuper OR m.rolreplication OR m.rolcreaterole)
                           AND m.oid <> r.oid AND pg_has_role(m.oid, 'MEMBER') ORDER BY 1)
               || ARRAY(SELECT DISTINCT 'may use ' || e.extname FROM pg_extension e
                          JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                                          AND d.classid = 'pg_proc'::regclass
                         WHERE e.extname = ANY(%(outward)s) AND has_function_privilege(d.objid, 'EXECUTE'))
           END AS rights
      FROM pg_roles r WHERE r.rolname = current_user
"""

ROLE_REMEDY = (
    "use a separate role that may only read: CREATE ROLE …; GRANT pg_read_all_stats, and SELECT on the tables of the queries"
)


@dataclass(frozen=True, slots=True)
class SourceRole:
    """``rights`` are the role's rights besides reading, each as the end of a sentence."""

    name: str
    rights: list[str]

    @property
    def in_words(self) -> str:
        return f"role {self.name!r} {', '.join(self.rights)}"


async def read_source_role(source: Source) -> SourceRole:
    [role] = await source.rows_of(SourceRole, "looking at the role", _ROLE, {"strong": [*_STRONG_ROLES], "outward": [*_OUTWARD]})
    return role


async def check_source_role(source: Source, pipeline: str) -> None:
    """Checks the role for a pipeline whose author is not trusted. Raises UsageError when the role may do anything but read."""
    role = await read_source_role(source)
    if role.rights:
        raise UsageError(
            f"pipeline '{pipeline}' is a document, and {role.in_words} at its source: its author chooses this role's SQL",
            f"{ROLE_REMEDY}; or set 'trusted: true' for the source in the places file, if all authors of documents may do that",
        )
