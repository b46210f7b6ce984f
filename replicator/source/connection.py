"""How every connection to the source is opened: pinned session settings, and errors as sentences."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import TupleRow

from pgsluice.shared import telemetry
from pgsluice.shared.broker.published_tables import UNCHECKED
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.postgres.refused_connection import comes_from_server, lasting_remedy, refused_sqlstate

CONNECT_TIMEOUT_S = 10
SILENCE_S = 1.0  # after which the log says what is waited for

log = telemetry.logger(__name__)

SESSION_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_read_only": "off",
    "default_transaction_isolation": r"read\ committed",
    "synchronous_commit": "local",
}
"""What shapes text, so that a value reads the same whatever the server, the database or the role sets. No time limits of the
role, which would end a session that is only waiting; and no waiting for the source's standbys with what we write ourselves."""

_HAS_TRANSACTION_TIMEOUT = 170_000
"""An older server refuses a connection whose startup options name a setting that it does not know."""

# A peer that vanished is noticed by TCP in about 30 s.
_TCP_SETTINGS = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}

_MOST_TEXT = 240
"""Characters of libpq's text that are shown: it tells one thing for each address that a name has."""

_HINT = " Is the server running on that host and accepting TCP/IP connections?"

Connection = psycopg.AsyncConnection[TupleRow]


async def connect(settings: PostgresSettings, *, replication: bool = False, raw: bool = False) -> Connection:
    """An autocommit connection; with ``replication`` one that speaks the streaming replication protocol. With ``raw``, for rows,
    a database of encoding SQL_ASCII sends its bytes as they are: the server would fail on text that is not UTF-8. psycopg
    gives text as bytes then.

    Raises TransientError when the server cannot be reached or has no room, TerminalError when it refuses us.
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
        if connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
            await connection.execute("SET transaction_timeout = 0")
    except psycopg.Error as error:
        raise await _connect_error(settings, parameters, error) from None
    finally:
        connecting.cancel()
    return connection


def _parameters(settings: PostgresSettings, replication: bool) -> dict[str, Any]:
    given = {
        "host": settings.host,
        "port": settings.port,
        "dbname": settings.dbname,
        "user": settings.user,
        "password": settings.password,
        "sslmode": settings.sslmode,
        "sslrootcert": settings.sslrootcert,
        "sslcert": settings.sslcert,
        "sslkey": settings.sslkey,
    }
    parameters: dict[str, Any] = {name: value for name, value in given.items() if value}
    parameters |= _TCP_SETTINGS | {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "client_encoding": "UTF8",
        "application_name": "pgsluice",
        "options": " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items()),
    }
    if replication:
        parameters["replication"] = "database"
    return parameters


async def notice_our_end(connection: Connection) -> None:
    """Makes the server see within seconds that this process is gone, while it runs a statement that takes long."""
    try:
        await connection.execute("SET client_connection_check_interval = '5s'")
    except errors.InvalidParameterValue:
        log.debug("the source cannot look whether we are there while it waits; it notices afterwards")
    except psycopg.Error as error:
        raise sql_error(error, "preparing to wait") from None


_REFUSALS = (
    ("password authentication failed", "check user and password"),
    ("no password supplied", "give a password, for example by PGSLUICE_PASSWORD"),
    ("pg_hba.conf", "let this user in by a line in the server's pg_hba.conf"),
    ("is not permitted to log in", "grant it with ALTER ROLE … LOGIN"),
    ("start wal", "give the role what it lacks: ALTER ROLE … REPLICATION"),
    ("permission denied", "grant the role CONNECT on the database"),
    ("role", "check user"),
    ("database", "check dbname"),
    ("certificate", "check sslmode, sslrootcert, sslcert and sslkey"),
    ("ssl", "check sslmode, sslrootcert, sslcert and sslkey"),
)
"""What a refusal's text holds → what to do. Where the server does not speak English, the SQLSTATE decides, which says less."""

_PASSING = (
    ("max_wal_senders", "raise max_wal_senders, or stop a replica or another replicator"),
    ("too many clients", "raise max_connections, or close other connections"),
    ("connection slots", "raise max_connections, or close other connections"),
    ("too many connections", "raise the role's or the database's connection limit"),
    ("starting up", "it is tried again"),
    ("shutting down", "it is tried again"),
    ("recovery", "it is tried again"),
)


async def _connect_error(settings: PostgresSettings, parameters: dict[str, Any], error: psycopg.Error) -> PgsluiceError:
    whole = " ".join(str(error).split())
    text = textwrap.shorten(whole.replace(_HINT, ""), _MOST_TEXT, placeholder=" …")
    where = f"PostgreSQL at {settings.host or 'the default host'}:{settings.port or 5432}"
    refuses = f"{where} refuses user {settings.user!r} for database {settings.dbname!r}"
    for fragment, remedy in _PASSING:
        if fragment in whole:
            return TransientError(f"{where} has no place for us now ({text})", remedy)
    if "FATAL" in whole and f'database "{settings.dbname}" does not exist' in whole:
        return TerminalError(f"{where} has no database {settings.dbname!r}", "check dbname (case matters), or create it")
    if "FATAL" in whole or "SSL" in whole or "certificate" in whole or "no password supplied" in whole:
        for fragment, remedy in _REFUSALS:
            if fragment in whole.lower():
                return TerminalError(f"{refuses} ({text})", remedy)
    if comes_from_server(error):
        sqlstate = await asyncio.to_thread(refused_sqlstate, parameters, CONNECT_TIMEOUT_S)
        if remedy := lasting_remedy(sqlstate):
            return TerminalError(f"{refuses} ({text}, SQLSTATE {sqlstate})", remedy)
    return TransientError(f"{where} does not answer ({text})", "check host and port, and that the server runs")


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
    """What the operator reads when the source fails ``doing`` something ("creating publication …")."""
    fact = f"{doing} failed{server_said(error.sqlstate or '', error.diag.message_primary or str(error))}"
    match error:
        case errors.InsufficientPrivilege():
            return TerminalError(fact, "grant the role what it lacks, or let the owner do it")
        case errors.ConfigurationLimitExceeded():
            return TerminalError(fact, "raise max_replication_slots, or drop a slot that nobody uses")
        case errors.InvalidCatalogName() | errors.InvalidSchemaName() | errors.UndefinedTable():
            return UsageError(fact, "check schema and tables")
        case errors.CharacterNotInRepertoire() | errors.UntranslatableCharacter():
            fact = f"{doing} failed: the catalog holds a name that is not UTF-8 (SQLSTATE {error.sqlstate})"
            return TerminalError(fact, "rename the table or column, or leave the table out of 'tables'")
        case errors.ObjectInUse():
            return TransientError(fact, "it is tried again")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or (error.sqlstate or "").startswith(
        _PASSING_CLASSES
    ):
        return TransientError(fact, "it is tried again")
    return TerminalError(fact, "see the server's log")
