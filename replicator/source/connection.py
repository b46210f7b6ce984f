"""How every connection to the source is opened: pinned session settings, and errors as sentences."""

from __future__ import annotations

import asyncio
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
from pgsluice.shared.postgres.refused_connection import connection_error
from pgsluice.shared.postgres.session_settings import (
    HAS_TRANSACTION_TIMEOUT,
    NO_TRANSACTION_TIMEOUT,
    SESSION_SETTINGS,
    libpq_parameters,
    startup_options,
)

SILENCE_S = 1.0  # after which the log says what is waited for

log = telemetry.logger(__name__)

_SOURCE_SETTINGS = SESSION_SETTINGS | {
    "lock_timeout": "0",
    "default_transaction_read_only": "off",
    "synchronous_commit": "local",
}
"""What we write ourselves does not wait for the source's standbys."""

Connection = psycopg.AsyncConnection[TupleRow]


async def connect(settings: PostgresSettings, *, replication: bool = False, raw: bool = False) -> Connection:
    """An autocommit connection; with ``replication`` one that speaks the streaming replication protocol. With ``raw``, for rows,
    a database of encoding SQL_ASCII sends its bytes as they are: the server would fail on text that is not UTF-8. psycopg
    gives text as bytes then.

    Raises TransientError when the server cannot be reached or has no room, UsageError when it refuses these settings.
    """
    parameters = _parameters(settings, replication)
    connecting = asyncio.ensure_future(psycopg.AsyncConnection.connect(**parameters, autocommit=True))
    try:
        if not (await asyncio.wait({connecting}, timeout=SILENCE_S))[0]:
            log.info("connecting to the source", host=settings.host, port=settings.port)
        connection = await connecting
        if raw and connection.info.parameter_status("server_encoding") == UNCHECKED:
            await connection.close()
            parameters["client_encoding"] = UNCHECKED
            connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
        if connection.info.server_version >= HAS_TRANSACTION_TIMEOUT:
            await connection.execute(NO_TRANSACTION_TIMEOUT)
    except psycopg.Error as error:
        raise await asyncio.to_thread(connection_error, settings, parameters, error) from None
    finally:
        connecting.cancel()
    return connection


def _parameters(settings: PostgresSettings, replication: bool) -> dict[str, Any]:
    parameters = libpq_parameters(settings) | {"application_name": "pgsluice", "options": startup_options(_SOURCE_SETTINGS)}
    return parameters | ({"replication": "database"} if replication else {})


async def notice_our_end(connection: Connection) -> None:
    """Makes the server see within seconds that this process is gone, while it runs a statement that takes long."""
    try:
        await connection.execute("SET client_connection_check_interval = '5s'")
    except errors.InvalidParameterValue:
        log.debug("the source cannot look whether we are there while it waits; it notices afterwards")
    except psycopg.Error as error:
        raise sql_error(error, "preparing to wait") from None


_PASSING_CLASSES = ("08", "40", "53", "55", "57")
"""SQLSTATE classes: connection, rollback, resources, object state, operator intervention."""

_QUOTING = ("22", "23", "38", "39", "44", "P0")
"""Classes of errors whose message may hold a value: data, constraints, functions."""


def server_said(sqlstate: str, text: str) -> str:
    """Completes "… failed" by what the server says, as far as that holds no value of a row."""
    said = f": {' '.join(text.split())}" if not sqlstate.startswith(_QUOTING) else ""
    return said + (f" (SQLSTATE {sqlstate})" if sqlstate else "")


TOO_LARGE = (
    "a row is larger than 1 GB as text, which PostgreSQL cannot decode or copy (a bytea has twice its size as text). Make such"
    " values smaller, or leave their table out of 'tables'"
)


def is_too_large(sqlstate: str, text: str) -> bool:
    """Whether the server failed because a row does not fit into its memory chunks of 1 GB (its MaxAllocSize)."""
    return "invalid memory alloc request size" in text or sqlstate == "54000"


def sql_error(error: psycopg.Error, doing: str) -> PgsluiceError:
    """What the operator reads when the source fails ``doing`` something ("creating publication …"). A LockTimeoutError when
    ``lock_timeout`` was set and passed."""
    fact = f"{doing} failed{server_said(error.sqlstate or '', error.diag.message_primary or str(error))}"
    match error:
        case errors.InsufficientPrivilege():
            return MissingPrivilegeError(fact, "grant the role what it lacks, or let the owner do it")
        case errors.ConfigurationLimitExceeded():
            return TerminalError(fact, "raise max_replication_slots, or drop a slot that nobody uses")
        case errors.InvalidCatalogName() | errors.InvalidSchemaName() | errors.UndefinedTable():
            return UsageError(fact, "check schema and tables")
        case errors.CharacterNotInRepertoire() | errors.UntranslatableCharacter():
            fact = f"{doing} failed: the catalog holds a name that is not UTF-8 (SQLSTATE {error.sqlstate})"
            return TerminalError(fact, "rename the table or column, or leave the table out of 'tables'")
        case errors.ObjectInUse():
            return TransientError(fact, "it is tried again", Cause.LOCK)
        case errors.LockNotAvailable():
            return LockTimeoutError(fact, "it is tried again")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or (error.sqlstate or "").startswith(
        _PASSING_CLASSES
    ):
        return TransientError(fact, "it is tried again", passing_cause(error.sqlstate, Cause.SOURCE))
    return TerminalError(fact, "see the server's log")
