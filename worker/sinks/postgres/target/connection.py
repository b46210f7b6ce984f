"""Connections to the target, with every setting pinned that the meaning of text or the life of a session depends on."""

from __future__ import annotations

import re
from typing import Any

import psycopg

from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.postgres.refused_connection import comes_from_server, lasting_remedy, refused_sqlstate
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings

Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_S = 10
"""Long enough for a loaded server; the caller tries again."""

_SESSION = b"""
SET client_encoding = 'UTF8';
SET DateStyle = 'ISO';
SET IntervalStyle = 'postgres';
SET TimeZone = 'UTC';
SET extra_float_digits = 3;
SET bytea_output = 'hex';
SET lc_monetary = 'C';
SET array_nulls = on;
SET xmloption = 'content';
SET standard_conforming_strings = on;
SET quote_all_identifiers = off;
SET default_transaction_isolation = 'read committed';
SET search_path = pg_catalog;
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET idle_session_timeout = 0;
SET tcp_keepalives_idle = 30;
SET tcp_keepalives_interval = 10;
SET tcp_keepalives_count = 3;
SET client_min_messages = 'warning';
SET jit = off;
"""
"""Compiling a merge takes longer than running it, hence no jit. ``search_path``: every name we use has its schema, and a
formatted type name must mean here what it means in pg_catalog. Keepalives: a worker whose machine is gone must not hold the
lock on its position for hours."""

_HAS_TRANSACTION_TIMEOUT = 170_000

_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist|permission denied"
    r"|does not support SSL|server certificate|root certificate|certificate verify failed|certificate authentication|sslmode"
)
"""What libpq and a server that speaks English say when another attempt with the same settings cannot succeed."""


def connect(settings: PostgresSinkSettings, application_name: str) -> Connection:
    """A connection in autocommit mode that never prepares statements: the plan must see how large tables are now.
    Of several hosts it is to the one that takes writes, so that a failover is followed.

    Raises UsageError when the server refuses these settings, TransientError when it cannot be reached.
    """
    parameters = _parameters(settings.target) | {"application_name": application_name}
    try:
        connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        connection.execute(_SESSION + f"SET lock_timeout = {round(1000 * settings.lock_timeout_s)}".encode())
        if connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
            connection.execute("SET transaction_timeout = 0")
    except psycopg.OperationalError as error:
        raise _connect_error(settings.target, parameters, error) from None
    return connection


def disable_foreign_keys(connection: Connection) -> None:
    """No foreign key and no ordinary trigger fires in this session. Raises TerminalError when the user may not do that."""
    try:
        connection.execute("SET session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        raise TerminalError(
            "the target user may not set session_replication_role, which disable-foreign-keys needs",
            f'run there: GRANT SET ON PARAMETER session_replication_role TO "{connection.info.user}",'
            " or set disable-foreign-keys: false",
        ) from None


def _parameters(target: PostgresSettings) -> dict[str, Any]:
    """libpq's: what was given, and how long to wait for whom."""
    given: dict[str, Any] = {
        "host": target.host,
        "port": target.port or "",
        "dbname": target.dbname,
        "user": target.user,
        "password": target.password,
        "sslmode": target.sslmode,
        "sslrootcert": target.sslrootcert,
        "sslcert": target.sslcert,
        "sslkey": target.sslkey,
    }
    return {name: value for name, value in given.items() if value != ""} | {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
        "target_session_attrs": "read-write",
    }


def _connect_error(target: PostgresSettings, parameters: dict[str, Any], error: psycopg.OperationalError) -> PgsluiceError:
    said = " ".join(str(error).split())
    where = f"target database '{target.dbname}' on {target.host}:{target.port}"
    if _REFUSED.search(said):
        return UsageError(
            f"the {where} refuses the connection ({said})", "check the target-* settings and the server's pg_hba.conf"
        )
    if comes_from_server(error):
        sqlstate = refused_sqlstate(parameters, CONNECT_TIMEOUT_S)
        if remedy := lasting_remedy(sqlstate):
            return UsageError(f"the {where} refuses the connection ({said}, SQLSTATE {sqlstate})", remedy)
    return TransientError(
        f"the {where} cannot be reached ({said})", "check that the server runs and that the network lets us through"
    )
