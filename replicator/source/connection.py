"""Opens every connection to the source: pinned session settings, and errors as sentences."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import TupleRow

from pgsluice.shared import telemetry
from pgsluice.shared.broker.published_tables import UNCHECKED
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import (
    Cause,
    LockTimeoutError,
    MissingPrivilegeError,
    PgsluiceError,
    TerminalError,
    TransientError,
    UsageError,
)
from pgsluice.shared.postgres.passing_cause import passing_cause
from pgsluice.shared.postgres.pooler import shared_error, shares_sessions, unset_error
from pgsluice.shared.postgres.refused_connection import connection_error, note_login
from pgsluice.shared.postgres.session_settings import (
    HAS_TRANSACTION_TIMEOUT,
    PROMPT_READER_SETTINGS,
    SESSION_SETTINGS,
    libpq_parameters,
    startup_options,
)

APPLICATION_NAME = "pgsluice"
WALSENDER_TIMEOUT_MS = 20_000
"""The server's own, a minute unless it is configured, is how long a connection that is lost keeps the slot from the next."""
SILENCE_S = 1.0  # after which the log reports what is waited for

log = telemetry.logger(__name__)

_SOURCE_SETTINGS = SESSION_SETTINGS | {
    "lock_timeout": "0",
    "default_transaction_read_only": "off",
    "synchronous_commit": "local",
}
"""pgsluice's own writes do not wait for the source's standbys."""

_SESSION = f"SELECT pg_backend_pid(), current_setting('search_path') = '{_SOURCE_SETTINGS['search_path']}'"

Connection = psycopg.AsyncConnection[TupleRow]


async def connect(settings: PostgresSettings, *, raw: bool = False) -> Connection:
    """Returns an autocommit connection. With ``raw``, for copied rows, a database of encoding SQL_ASCII sends its bytes
    as they are: the server would fail on text that is not UTF-8. psycopg returns text as bytes then. And the server
    does not end a session whose client does not read for a while.

    Raises TransientError when the server cannot be reached or has no room, UsageError when it refuses these settings,
    or a pooler that shares sessions is in between.
    """
    session = _SOURCE_SETTINGS if raw else _SOURCE_SETTINGS | PROMPT_READER_SETTINGS
    return await _connect(settings, {"application_name": APPLICATION_NAME}, session, raw=raw)


async def connect_for_replication(
    settings: PostgresSettings,
    application_name: str = APPLICATION_NAME,
    timeout_ms: int = WALSENDER_TIMEOUT_MS,
    *,
    raw: bool = False,
) -> Connection:
    """Like ``connect``, for the streaming replication protocol. ``synchronous_standby_names`` of the source may name it
    by ``application_name``. Its server ends it after ``timeout_ms`` without a message from the client."""
    more = {"application_name": application_name, "replication": "database"}
    return await _connect(settings, more, _SOURCE_SETTINGS | {"wal_sender_timeout": f"{timeout_ms}ms"}, raw=raw)


async def _connect(settings: PostgresSettings, more: Mapping[str, str], session: dict[str, str], *, raw: bool) -> Connection:
    parameters = libpq_parameters(settings) | dict(more) | {"options": startup_options(session)}
    connecting = asyncio.ensure_future(psycopg.AsyncConnection.connect(**parameters, autocommit=True))
    try:
        if not (await asyncio.wait({connecting}, timeout=SILENCE_S))[0]:
            log.info("connecting to the source", host=settings.host, port=settings.port)
        connection = await connecting
        if raw and connection.info.parameter_status("server_encoding") == UNCHECKED:
            await connection.close()
            parameters["client_encoding"] = UNCHECKED
            connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
        try:
            await _look_at_session(connection, settings, parameters)
        except BaseException:
            await connection.close()
            raise
    except psycopg.Error as error:
        raise await asyncio.to_thread(connection_error, settings, parameters, error) from None
    finally:
        connecting.cancel()
    note_login(settings)
    return connection


async def _look_at_session(connection: Connection, settings: PostgresSettings, parameters: Mapping[str, Any]) -> None:
    """Makes sure that it is an unshared session, with the right settings."""
    lifted = "set_config('transaction_timeout', '0', false)"
    is_known = connection.info.server_version >= HAS_TRANSACTION_TIMEOUT
    row = await (await connection.execute(f"{_SESSION}, {lifted if is_known else 'NULL'}".encode())).fetchone()
    assert row is not None
    process, has_settings, _ = row
    if not has_settings:
        raise unset_error(settings)
    if process != connection.info.backend_pid and await asyncio.to_thread(_is_shared, parameters):
        raise shared_error(settings)


def _is_shared(parameters: Mapping[str, Any]) -> bool:
    with psycopg.connect(**parameters, autocommit=True, prepare_threshold=None) as connection:
        return shares_sessions(connection, parameters)


async def notice_our_end(connection: Connection) -> None:
    """Makes the server see within seconds that this process is gone, while it runs a statement that takes long."""
    try:
        await connection.execute("SET client_connection_check_interval = '5s'")
    except errors.InvalidParameterValue:
        log.debug("the source cannot check this connection while it waits; it detects a loss afterwards")
    except psycopg.Error as error:
        raise sql_error(error, "preparing to wait") from None


_PASSING_CLASSES = ("08", "40", "53", "55", "57")
"""SQLSTATE classes: connection, rollback, resources, object state, operator intervention."""

_QUOTING = ("22", "23", "38", "39", "44", "P0")
"""Classes of errors whose message can contain a value: data, constraints, functions."""


def server_said(sqlstate: str, text: str) -> str:
    """Completes "… failed" by the server's message, if it holds no value of a row."""
    said = f": {' '.join(text.split())}" if not sqlstate.startswith(_QUOTING) else ""
    return said + (f" (SQLSTATE {sqlstate})" if sqlstate else "")


TOO_LARGE = (
    "a row is larger than 1 GB as text, which PostgreSQL cannot decode or copy (a bytea has twice its size as text). Make such"
    " values smaller, or leave their table out of 'tables'"
)


RECOVERY_CONFLICT = (
    "its primary has removed rows that this standby still reads: set hot_standby_feedback = on at this standby, or raise its"
    " max_standby_streaming_delay (-1: for as long as it takes), or copy from the primary; finished tables stay"
)
"""Remedy when a standby ends snapshots (manual: "Handling Query Conflicts"). For transactions that only read it is the
only reason for a serialization failure."""


def is_too_large(sqlstate: str, text: str) -> bool:
    """Returns whether the server failed because a row does not fit into its memory chunks of 1 GB (its MaxAllocSize)."""
    return "invalid memory alloc request size" in text or sqlstate == "54000"


def sql_error(error: psycopg.Error, doing: str) -> PgsluiceError:
    """Returns the error when the source fails ``doing`` something ("creating publication …"). A LockTimeoutError when
    ``lock_timeout`` was set and passed."""
    fact = f"{doing} failed{server_said(error.sqlstate or '', error.diag.message_primary or str(error))}"
    match error:
        case errors.InsufficientPrivilege():
            return MissingPrivilegeError(fact, "grant the role the missing privilege, or let the owner do it")
        case errors.ConfigurationLimitExceeded():
            return TerminalError(fact, "raise max_replication_slots, or drop an unused slot")
        case errors.InvalidCatalogName() | errors.InvalidSchemaName() | errors.UndefinedTable():
            return UsageError(fact, "check schema and tables")
        case errors.CharacterNotInRepertoire() | errors.UntranslatableCharacter():
            fact = f"{doing} failed: the catalog holds a name that is not UTF-8 (SQLSTATE {error.sqlstate})"
            return TerminalError(fact, "rename the table or column, or leave the table out of 'tables'")
        case errors.SerializationFailure():
            return TransientError(fact, RECOVERY_CONFLICT, Cause.SOURCE)
        case errors.ObjectInUse():
            return TransientError(fact, "it is tried again", Cause.LOCK)
        case errors.LockNotAvailable():
            return LockTimeoutError(fact, "it is tried again")
    if isinstance(error, errors.OutOfMemory) and "max_locks_per_transaction" in (error.diag.message_hint or ""):
        remedy = "raise max_locks_per_transaction at the source, which takes a restart of it; it is tried again"
        return TransientError(fact, remedy, Cause.SOURCE)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or (error.sqlstate or "").startswith(
        _PASSING_CLASSES
    ):
        return TransientError(fact, "it is tried again", passing_cause(error.sqlstate, Cause.SOURCE))
    return TerminalError(fact, "see the server's log")
