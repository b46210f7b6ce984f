"""Connections to the target, with every setting pinned that the meaning of text or the life of a session depends on."""

from __future__ import annotations

from typing import Any

import psycopg
import psycopg.sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.postgres.refused_connection import connection_error
from pgsluice.shared.postgres.session_settings import (
    HAS_TRANSACTION_TIMEOUT,
    NO_TRANSACTION_TIMEOUT,
    SESSION_SETTINGS,
    libpq_parameters,
    set_statements,
)
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings

Connection = psycopg.Connection[tuple[Any, ...]]

GRANTS_PARAMETERS = 150_000
"""GRANT … ON PARAMETER came with PostgreSQL 15."""

_TARGET_SETTINGS = SESSION_SETTINGS | {
    "xmloption": "content",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "client_min_messages": "warning",
    "jit": "off",
}
"""Compiling a merge takes longer than running it, hence no jit. Keepalives: a worker whose machine is gone must not hold the
lock on its position for hours."""


def connect(settings: PostgresSinkSettings, application_name: str) -> Connection:
    """A connection in autocommit mode that never prepares statements: the plan must see how large tables are now.
    Of several hosts it is to the one that takes writes, so that a failover is followed.

    Raises UsageError when the server refuses these settings, TransientError when it cannot be reached.
    """
    parameters = libpq_parameters(settings.target) | {
        "application_name": application_name,
        "target_session_attrs": "read-write",
    }
    own = _TARGET_SETTINGS | {"lock_timeout": str(round(1000 * settings.lock_timeout_s))}
    try:
        connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        connection.execute(set_statements(own).encode())
        if connection.info.server_version >= HAS_TRANSACTION_TIMEOUT:
            connection.execute(NO_TRANSACTION_TIMEOUT)
    except psycopg.OperationalError as error:
        raise connection_error(settings.target, parameters, error, is_target=True) from None
    return connection


def disable_foreign_keys(connection: Connection, wanted: bool | None) -> bool:
    """Sets ``session_replication_role = replica``, under which no foreign key and no ordinary trigger fires, and returns True.
    When that is not ``wanted``, or nobody said so (None) and the role may not, it does nothing and returns False.

    Raises TerminalError when it is wanted and the role may not.
    """
    if wanted is False:
        return False
    try:
        connection.execute("SET session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        if wanted is None:
            return False
        statement = grant_of_replica_role(connection)
        way_out = f"run there: {statement}" if statement else "before PostgreSQL 15 only a superuser may: connect as one"
        raise TerminalError(
            "the target user may not set session_replication_role, which target-disable-foreign-keys needs",
            f"{way_out}, or set target-disable-foreign-keys: false",
            statements=[statement] if statement else [],
        ) from None
    return True


def grant_of_replica_role(connection: Connection) -> str:
    """Returns the statement that lets the connection's role set session_replication_role; "" where only a superuser may."""
    if connection.info.server_version < GRANTS_PARAMETERS:
        return ""
    role = psycopg.sql.Identifier(connection.info.user).as_string()
    return f"GRANT SET ON PARAMETER session_replication_role TO {role}"
