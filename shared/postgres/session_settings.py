"""The connection to source and target: libpq's parameters, and the settings of every session.

What shapes text is pinned, so that a value reads the same whatever the server, the database or the role sets, and no
row is left out silently. Time limits of the role are lifted, since they would end a session that is only waiting. And a
server notices within half a minute that the client is gone: a lock, a slot or a snapshot of a forgotten session would
block the next one.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from psycopg import pq

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.config.values import current_secret
from pgsluice.shared.hosts import is_of_one_machine

CONNECT_TIMEOUT_S = 10
"""Long enough for a loaded server; the caller tries again."""

SESSION_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "array_nulls": "on",
    "xmloption": "content",
    "row_security": "off",
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
}
"""``search_path``: every name used has its schema, and the name of a type must mean what it means in pg_catalog.
``row_security``: a policy that hides rows is an error, instead of missing rows. Keepalives: a connection on which
nothing is under way ends 20 s after its client vanished."""

PROMPT_READER_SETTINGS = {"tcp_user_timeout": "20s"}
"""Settings for sessions whose answers are read immediately: an answer that is not read for that long ends the session,
also where keepalives are not sent. It would also end a session whose reader waits on purpose, as a copy does while its
stream is full."""

HAS_TRANSACTION_TIMEOUT = 170_000
"""``transaction_timeout`` is set after connecting: an older server refuses startup options that it does not know."""

NO_TRANSACTION_TIMEOUT = "SET transaction_timeout = 0"

_TCP_SETTINGS = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""A server that vanished is noticed in about 30 s."""


log = telemetry.logger(__name__)

_VERIFYING = ("verify-ca", "verify-full")
_KNOWS_REQUIRE_AUTH = 160_000


def is_unverified(settings: PostgresSettings) -> bool:
    """Returns whether the server is on another machine and need not show a certificate that an authority vouches for: anybody
    on the network path may impersonate it, and read the traffic."""
    mode = settings.sslmode or os.environ.get("PGSSLMODE", "")
    is_verified = mode in _VERIFYING or settings.sslrootcert == "system"
    return not is_verified and not all(is_of_one_machine(host) for host in settings.host.split(","))


def unverified_fact(database: str) -> str:
    return (
        f"the {database} database is on another machine and its certificate is not checked: an attacker on the network path can"
        " read the traffic"
    )


def unverified_remedy(prefix: str) -> str:
    return (
        f"set {prefix}sslmode: verify-full and {prefix}sslrootcert, or make sure that only trusted machines are on that network"
    )


@functools.cache
def warn_of_unverified(settings: PostgresSettings, database: str, prefix: str) -> None:
    """Warns once in a process, when there is reason to. ``database`` is "source" or "target", ``prefix`` the prefix of
    its options."""
    if is_unverified(settings):
        log.warning(unverified_fact(database), host=settings.host, remedy=unverified_remedy(prefix))


def libpq_parameters(settings: PostgresSettings) -> dict[str, Any]:
    """Returns the parameters of libpq: the given ones, timeouts, and UTF-8. A password that a file holds is read again. A server
    that is not verified never gets the password itself, only its proof (SCRAM) or its digest."""
    given = {
        "host": settings.host,
        "port": settings.port,
        "dbname": settings.dbname,
        "user": settings.user,
        "password": current_secret(settings.password),
        "sslmode": settings.sslmode,
        "sslrootcert": settings.sslrootcert,
        "sslcert": settings.sslcert,
        "sslkey": settings.sslkey,
        "channel_binding": settings.channel_binding,
    }
    parameters: dict[str, Any] = {name: value for name, value in given.items() if value}
    if is_unverified(settings) and pq.version() >= _KNOWS_REQUIRE_AUTH:
        parameters["require_auth"] = "!password"
    return parameters | _TCP_SETTINGS | {"connect_timeout": CONNECT_TIMEOUT_S, "client_encoding": "UTF8"}


def startup_options(settings: dict[str, str]) -> str:
    """Returns libpq's parameter ``options`` that makes ``settings`` from the session's first moment."""
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())


def set_statements(settings: dict[str, str]) -> str:
    """Returns the settings as statements for an open session: a pooler in between may not support startup options."""
    return ";\n".join(f"SET {name} = '{value}'" for name, value in settings.items())
