"""Connections to the target, with every setting pinned that the meaning of text or the life of a session depends on."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg.sql

from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.postgres.pooler import is_pooled, shared_error, shares_sessions
from pgsluice.shared.postgres.refused_connection import connection_error, note_login
from pgsluice.shared.postgres.session_settings import (
    CONNECT_TIMEOUT_S,
    HAS_TRANSACTION_TIMEOUT,
    NO_TRANSACTION_TIMEOUT,
    PROMPT_READER_SETTINGS,
    SESSION_SETTINGS,
    libpq_parameters,
    set_statements,
)
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings

Connection = psycopg.Connection[tuple[Any, ...]]

GRANTS_PARAMETERS = 150_000
"""GRANT … ON PARAMETER came with PostgreSQL 15."""

_TARGET_SETTINGS = SESSION_SETTINGS | PROMPT_READER_SETTINGS | {"client_min_messages": "warning", "jit": "off"}
"""Compiling a merge takes longer than running it, hence no jit."""

DRIVER_SESSION, TASK_SESSION = "pgsluice worker", "pgsluice task"
"""Names (application_name) of the sessions that can lock a worker's position."""

_READ_ONLY = "session is read-only"
"""libpq's words for a server that ``target_session_attrs`` skips."""

# Manual: the view pg_settings; "source" is where the value was set.
_WHO_MADE_IT_READ_ONLY = """
    SELECT pg_is_in_recovery(), current_database()::text, current_user::text,
           (SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only')
"""


def connect(settings: PostgresSinkSettings, application_name: str) -> Connection:
    """Opens a connection in autocommit mode that never prepares statements: the plan must see how large tables are now.
    Of several hosts it chooses the one that takes writes, and so follows a failover. It makes settings by a statement
    and not by libpq's ``options``, which a pooler in session mode may refuse.

    Raises UsageError when the server refuses these settings, or when a pooler shares sessions; TransientError when it
    cannot be reached or takes no writes.
    """
    parameters = libpq_parameters(settings.target) | {
        "application_name": application_name,
        "target_session_attrs": "read-write",
    }
    try:
        connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        try:
            with answering_within(CONNECT_TIMEOUT_S, connection):
                _set_up(connection, settings, parameters)
        except BaseException:
            connection.close()
            raise
    except psycopg.OperationalError as error:
        if _READ_ONLY in str(error) and (read_only := _read_only_error(settings, parameters)) is not None:
            raise read_only from None
        raise connection_error(settings.target, parameters, error, is_target=True) from None
    note_login(settings.target)
    return connection


def break_off(connection: Connection) -> None:
    """Ends the wait of the thread that uses it, as if the connection had broken. From another thread."""
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


@contextmanager
def answering_within(limit_s: float, connection: Connection) -> Iterator[None]:
    """Breaks the connection off when the block takes longer: a firewall or balancer may drop an answer without a signal
    to either side."""
    timer = threading.Timer(limit_s, break_off, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _set_up(connection: Connection, settings: PostgresSinkSettings, parameters: Mapping[str, Any]) -> None:
    """Makes the settings of the session. Raises UsageError, and sets nothing, where a pooler shares the session with others."""
    if is_pooled(connection) and shares_sessions(connection, parameters):
        raise shared_error(settings.target, is_target=True)
    own = _TARGET_SETTINGS | {"lock_timeout": str(round(1000 * settings.lock_timeout_s))}
    connection.execute(set_statements(own).encode())
    if connection.info.server_version >= HAS_TRANSACTION_TIMEOUT:
        connection.execute(NO_TRANSACTION_TIMEOUT)


def _read_only_error(settings: PostgresSinkSettings, parameters: Mapping[str, Any]) -> TransientError | None:
    """Returns why no host accepts writes, according to the first that answers; None when none answers any more."""
    try:
        with psycopg.connect(**{**parameters, "target_session_attrs": "any"}, autocommit=True) as connection:
            row = connection.execute(_WHO_MADE_IT_READ_ONLY).fetchone()
            where = f"the target, PostgreSQL at {connection.info.host}:{connection.info.port},"
    except psycopg.Error:
        return None
    assert row is not None
    is_standby, database, role, source = row
    if is_standby:
        return TransientError(
            f"{where} is a standby, which takes no writes",
            "set target-host to the primary, or to all servers of the cluster with commas between: the one that takes writes is"
            " found, also after a failover",
            Cause.TARGET,
        )
    in_role, in_database = psycopg.sql.Identifier(role).as_string(), psycopg.sql.Identifier(database).as_string()
    altered = {
        "user": f"ROLE {in_role}",
        "database": f"DATABASE {in_database}",
        "database user": f"ROLE {in_role} IN DATABASE {in_database}",
        "global": "ROLE ALL",
    }.get(source)
    statement = f"ALTER {altered} RESET default_transaction_read_only" if altered else ""
    way_out = f"run there: {statement}" if altered else f"it is set by: {source}; set it to off when the server may be written to"
    fact = f"{where} gives role {role!r} sessions that are read-only (default_transaction_read_only)"
    return TransientError(fact, way_out, Cause.TARGET, statements=[statement] if altered else [])


def disable_foreign_keys(connection: Connection, wanted: bool | None) -> bool:
    """Sets ``session_replication_role = replica``, under which no foreign key and no ordinary trigger fires, and
    returns True. When that is not ``wanted``, or unset (None) and the role may not, it does nothing and returns False.

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
