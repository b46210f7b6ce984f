"""Reasons of a PostgreSQL server for refusing a connection, in any language.

The same refusal is the same error at the source and at the target.

libpq gives no SQLSTATE for a connection that failed, only the server's message. That is in the server's
``lc_messages``, which applies before any setting of a client, and which an ordinary role may not set. But libpq's trace
(manual: "PQtrace") holds the server's error with its code. So after a refusal in another language than English the
connection is tried once more, with a trace in memory.
"""

from __future__ import annotations

import os
import re
import select
import textwrap
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import Cause, LoginRefusedError, PgsluiceError, TransientError, UsageError
from pgsluice.shared.postgres.session_settings import CONNECT_TIMEOUT_S

_SERVER_MESSAGE = re.compile(r"failed: \S+:  ")
"""libpq writes ``<severity>:  <message>`` (two spaces) for a server's message, and nothing like it for its own."""

_ERROR_CODE = re.compile(rb'\tErrorResponse\t.* C "([0-9A-Z]{5})" M ')

LOGIN_PATIENCE_S = 60.0
"""A login that is refused is tried again for this time."""

_MOST_TEXT = 240
"""Limit of the displayed characters of libpq's text: it has one entry for each address of a name."""

_HINT = " Is the server running on that host and accepting TCP/IP connections?"

_PASSING = (
    ("max_wal_senders", "raise max_wal_senders, or stop a replica or another replicator"),
    ("too many clients", "raise max_connections, or close other connections"),
    ("connection slots", "raise max_connections, or close other connections"),
    ("too many connections", "raise the role's or the database's connection limit"),
    ("starting up", "it is tried again"),
    ("shutting down", "it is tried again"),
    ("recovery", "it is tried again"),
    ("system is not yet accepting connections", "it is tried again"),
    ("system is not accepting connections", "it is tried again, until that server is a primary, or a standby that can be read"),
)
_LOGIN_FAILED, _INVALID_PASSWORD = "authentication failed for user", "28P01"
_TLS = "check {0}sslmode, {0}sslrootcert, {0}sslcert and {0}sslkey"
_LASTING = (
    (
        "server requested a cleartext password",
        "set {0}sslmode: verify-full and {0}sslrootcert, or have pg_hba.conf ask for scram-sha-256: pgsluice sends a password"
        " itself only to a server whose certificate it checks",
    ),
    (
        "unsupported startup parameter",
        "a pooler is between pgsluice and the server: set {0}host and {0}port to the PostgreSQL server itself",
    ),
    (_LOGIN_FAILED, "check {0}user and {0}password"),
    ("no password supplied", "give a password, for example by {1}PASSWORD"),
    ("pg_hba.conf", "let this user in by a line in the server's pg_hba.conf"),
    ("is not permitted to log in", "grant it with ALTER ROLE … LOGIN"),
    ("start wal", "grant the role the missing attribute: ALTER ROLE … REPLICATION"),
    ("permission denied", "grant the role CONNECT on the database"),
    ('role "', "check {0}user"),
    ('database "', "check {0}dbname (case matters), or create it"),
    ("certificate", _TLS),
    ("ssl", _TLS),
)
"""Text of a refusal, the first match wins → remedy. If the server does not use English, the SQLSTATE decides, which is
less precise."""

_LASTING_SQLSTATES = {
    _INVALID_PASSWORD: "check {0}user and {0}password",
    "28000": "check {0}user, and that a line of the server's pg_hba.conf lets it in",
    "3D000": "check {0}dbname: it names no database there",
    "42501": "grant the role the missing privilege: CONNECT on the database, and REPLICATION at the source",
}


def connection_error(
    settings: PostgresSettings, parameters: Mapping[str, Any], error: psycopg.Error, *, is_target: bool = False
) -> PgsluiceError:
    """Returns the error for a failed connection with ``parameters``: UsageError when the server refuses these settings,
    and would again; TransientError when it cannot be reached or has no room, or refuses a login that may be right soon,
    and LoginRefusedError when it is not right by then. May connect once more, and so block for CONNECT_TIMEOUT_S."""
    whole = " ".join(str(error).split())
    text = textwrap.shorten(whole.replace(_HINT, ""), _MOST_TEXT, placeholder=" …")
    options, variables = ("target-", "PGSLUICE_TARGET_") if is_target else ("", "PGSLUICE_")
    side, cause = ("the target, PostgreSQL", Cause.TARGET) if is_target else ("PostgreSQL", Cause.SOURCE)
    where = f"{side} at {settings.host or 'the default host'}:{settings.port or 5432}"
    for fragment, remedy in _PASSING:
        if fragment in whole:
            return TransientError(f"{where} has no place for us now ({text})", remedy, cause)
    remedy, code = _lasting(whole), ""
    if not remedy and comes_from_server(error):
        code = refused_sqlstate(parameters, CONNECT_TIMEOUT_S)
        remedy = _LASTING_SQLSTATES.get(code, "")
    if remedy:
        said = f"{text}, SQLSTATE {code}" if code else text
        fact = f"{where} refuses user {settings.user!r} for database {settings.dbname!r} ({said})"
        remedy = remedy.format(options, variables)
        if _LOGIN_FAILED in whole or code == _INVALID_PASSWORD:
            return _refused_login(settings, fact, remedy, cause)
        return UsageError(fact, remedy)
    remedy = f"check {options}host and {options}port, and that the server runs"
    return TransientError(f"{where} does not answer ({text})", remedy, cause)


_refusals: dict[PostgresSettings, tuple[float, float]] = {}
"""First and last refusal of each login of this process since it last succeeded."""


def note_login(settings: PostgresSettings) -> None:
    """Notes a successful login."""
    _refusals.pop(settings, None)


def _refused_login(settings: PostgresSettings, fact: str, remedy: str, cause: Cause) -> PgsluiceError:
    """A password that was changed is not the same on both sides at once."""
    now = time.monotonic()
    first, last = _refusals.get(settings, (now, now))
    first = first if now - last < LOGIN_PATIENCE_S else now
    _refusals[settings] = first, now
    if now - first < LOGIN_PATIENCE_S:
        return TransientError(fact, f"{remedy}; a password-file is read again at each attempt", cause)
    return LoginRefusedError(fact, f"{remedy}; a new start reads all secrets again")


def _lasting(text: str) -> str:
    """Returns the remedy for a refusal that another attempt with the same settings meets again; "" if ``text`` is no
    such refusal."""
    signs = ("FATAL", "SSL", "sslmode", "certificate", "no password supplied", "method requirement")
    if not any(sign in text for sign in signs):
        return ""
    lower = text.lower()
    return next((remedy for fragment, remedy in _LASTING if fragment in lower), "")


def comes_from_server(error: psycopg.Error) -> bool:
    """Returns whether a server answered: then ``refused_sqlstate`` can determine the reason."""
    return _SERVER_MESSAGE.search(str(error)) is not None


def refused_sqlstate(parameters: Mapping[str, Any], timeout_s: float) -> str:
    """Returns the code of the error by which a server refuses such a connection now; "" when none does. Blocks for so
    long at most."""
    trace = os.memfd_create("trace", os.MFD_CLOEXEC)  # never a file: it holds the exchange of passwords
    connection = pq.PGconn.connect_start(make_conninfo(**parameters).encode())
    try:
        _follow(connection, trace, time.monotonic() + timeout_s)
        os.lseek(trace, 0, os.SEEK_SET)
        with open(trace, "rb", closefd=False) as file:
            codes: list[bytes] = _ERROR_CODE.findall(file.read())
        return codes[-1].decode() if codes else ""
    finally:
        connection.finish()
        os.close(trace)


def _follow(connection: pq.abc.PGconn, trace: int, deadline: float) -> None:
    """Carries the connection to its end, good or bad."""
    if connection.status == pq.ConnStatus.BAD:
        return
    connection.trace(trace)
    while True:
        match connection.connect_poll():
            case pq.PollingStatus.READING:
                readable, writable = [connection.socket], []
            case pq.PollingStatus.WRITING:
                readable, writable = [], [connection.socket]
            case _:
                break
        left_s = deadline - time.monotonic()
        if left_s <= 0 or select.select(readable, writable, [], left_s) == ([], [], []):
            break
    connection.untrace()  # what is buffered is written then
