"""Check that a group's capture belongs to roles that the group's role and its installer can trust (``owner_sql`` names them)."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from pgsluice.replicator.definitions.installation import others_query
from pgsluice.replicator.definitions.owner_sql import INSTALLED
from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.preflight.finding import raise_all
from pgsluice.shared.wire.names import SOURCE_SCHEMA, GroupNames


@dataclass(frozen=True, slots=True)
class _Other:
    """``role`` is None for PUBLIC."""

    kind: str
    name: str
    role: str | None


async def check_owners(source: Source, names: GroupNames) -> None:
    """Checks the owners; call it before anything in the schema is touched. Raises TerminalError when another role could have
    put anything there."""
    raise_all(await owner_errors(source, names), "the source's schema pgsluice")


async def owner_errors(source: Source, names: GroupNames) -> list[TerminalError]:
    """Returns errors about owners; empty while there is no schema."""
    doing = "looking up who owns the capture of schema changes"
    return [_error(other) for other in await source.rows_of(_Other, doing, others_query(names, INSTALLED))]


def _error(other: _Other) -> TerminalError:
    role = "PUBLIC" if other.role is None else sql.Identifier(other.role).as_string()
    who = "every role" if other.role is None else f"'{other.role}'"
    match other.kind:
        case "right":
            statements = [f"REVOKE CREATE ON SCHEMA {SOURCE_SCHEMA} FROM {role} CASCADE"]
            fact = (
                f"{who} may create in schema {SOURCE_SCHEMA} of the source, and so run anything as the role that installed the"
                " capture"
            )
        case "schema":
            statements = [
                f"ALTER SCHEMA {SOURCE_SCHEMA} OWNER TO CURRENT_USER",
                f"GRANT USAGE ON SCHEMA {SOURCE_SCHEMA} TO {role}",
            ]
            fact = (
                f"schema {SOURCE_SCHEMA} of the source belongs to {who}, who could run anything as the role that installs the"
                " capture"
            )
        case _:
            fact = f"{other.kind} {other.name} belongs to {who}, who could run anything as the group's role or an administrator"
            remedy = (
                "find out who created it, and let an administrator run the SQL of 'pgsluice ddl sql --remove' and then of"
                " 'pgsluice ddl sql'"
            )
            return TerminalError(fact, remedy)
    remedy = f"have the administrator who installs the capture run: {'; '.join(statements)}"
    return TerminalError(fact, remedy, statements=statements)
