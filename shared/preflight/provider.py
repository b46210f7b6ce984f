"""The provider of a PostgreSQL server, and how administrators change a setting there: only superusers have ALTER SYSTEM.

Sources: Amazon RDS "Performing logical replication", Cloud SQL "Set up logical replication" and "Configure database
flags", Azure Database "Logical replication" and "Server parameters", Supabase "Customizing Postgres configs".
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

RELOAD = "SELECT pg_reload_conf()"


class Provider(enum.StrEnum):
    """PLAIN is a server whose superuser one is, or knows."""

    PLAIN = "plain"
    RDS = "rds"
    CLOUD_SQL = "cloud-sql"
    AZURE = "azure"
    SUPABASE = "supabase"


ADMINISTRATORS = {
    "rds_superuser": Provider.RDS,
    "cloudsqlsuperuser": Provider.CLOUD_SQL,
    "azure_pg_admin": Provider.AZURE,
    "supabase_admin": Provider.SUPABASE,
}
"""The role that a provider makes in every server → the provider."""

RDS_REPLICATION = "rds_replication"
"""Role whose members may replicate at RDS, where no role has the attribute REPLICATION."""


def provider_of(roles: Collection[str]) -> Provider:
    """``roles`` are those of the server."""
    return next((provider for role, provider in ADMINISTRATORS.items() if role in roles), Provider.PLAIN)


@dataclass(frozen=True, slots=True)
class Cure:
    """The way to change a setting: in words, and by SQL if there is SQL for it."""

    remedy: str
    statements: tuple[str, ...] = ()


def setting_cure(provider: Provider, name: str, value: str, *, restart: bool) -> Cure:
    """``name`` is PostgreSQL's; ``restart``: it takes effect when the server has started again."""
    after = "restart the server" if restart else "it takes effect at once"
    match provider:
        case Provider.PLAIN:
            statement = f"ALTER SYSTEM SET {name} = '{value}'"
            if restart:
                return Cure(f"{statement} and restart the server", (statement,))
            return Cure(f"{statement} and reload", (statement, RELOAD))
        case Provider.RDS:
            named = "rds.logical_replication = 1" if name == "wal_level" else f"{name} = {value}"
            return Cure(f"set {named} in the parameter group of the instance or cluster; {_after_reboot(restart)}")
        case Provider.CLOUD_SQL:
            named = "cloudsql.logical_decoding=on" if name == "wal_level" else f"{name}={value}"
            return Cure(
                f"gcloud sql instances patch INSTANCE --database-flags={named} (name the flags that are set already too: those"
                f" that are not named are reset{'; the instance starts again' if restart else ''})"
            )
        case Provider.AZURE:
            return Cure(f"set the server parameter {name} to {value} (Settings, Server parameters), then {after}")
        case Provider.SUPABASE:
            return Cure(
                f"supabase --experimental --project-ref REF postgres-config update --config {name}={value}"
                f"{' (the database starts again)' if restart else ''}"
            )
        case unreachable:
            assert_never(unreachable)


def _after_reboot(restart: bool) -> str:
    return "then reboot the instance" if restart else "it takes effect at once"


def replication_cure(provider: Provider, role: str) -> Cure:
    """``role`` is quoted as SQL wants it."""
    if provider is Provider.RDS:
        statement = f"GRANT {RDS_REPLICATION} TO {role}"
        return Cure(statement, (statement,))
    statement = f"ALTER ROLE {role} REPLICATION"
    return Cure(statement, (statement,))


def grants_bypassing_row_security(provider: Provider) -> bool:
    """Returns whether an administrator there may give a role BYPASSRLS."""
    return provider in (Provider.PLAIN, Provider.SUPABASE)
