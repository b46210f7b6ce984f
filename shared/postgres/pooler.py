"""Detects a pooler in front of the server whose sessions serve several clients in turn.

What pgsluice sets in a session (``SET``), locks or creates would reach other clients, and theirs pgsluice. A pool that
gives each client a session of the server until it leaves (session mode) does no harm; one that does so until the end of
each transaction does. The server itself reports the number of its process when a client connects (manual:
BackendKeyData); a pooler reports another number. So most connections need one query, and only those to a pooler more.
Nothing is set meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import UsageError

_TURNS = 8
"""The number of times that each of two clients asks for its process while the other is in a transaction: a pool that
serves others too may give them the same ones as before."""


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Returns whether a pooler is in between."""
    return _process(connection) != connection.info.backend_pid


def shares_sessions(connection: psycopg.Connection[Any], parameters: Mapping[str, Any]) -> bool:
    """Returns whether ``connection``, which is pooled and in autocommit mode, and another client that connects so take
    turns at one session of the server. Raises psycopg.Error."""
    with psycopg.connect(**parameters, autocommit=True, prepare_threshold=None) as another:
        idle, busy, known = connection, another, {_process(connection)}
        for _ in range(_TURNS):
            busy.execute("BEGIN")
            process = _process(busy)
            known.add(_process(idle))
            busy.execute("COMMIT")
            if len(known) > 1 or process in known:
                return True
            idle, busy, known = busy, idle, {process}
    return False


def _process(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def shared_error(settings: PostgresSettings, *, is_target: bool = False) -> UsageError:
    side, option = ("target", "target-") if is_target else ("source", "")
    return UsageError(
        f"a pooler at {settings.host or 'the default host'}:{settings.port or 5432} has each session of the {side} database"
        " serve several clients in turn (transaction mode): settings of pgsluice would reach other clients, and theirs pgsluice",
        f"set {option}host and {option}port to the PostgreSQL server itself, or to a pool in session mode",
    )


def unset_error(settings: PostgresSettings) -> UsageError:
    """Returns the error for a pooler that ignores libpq's ``options`` (PgBouncer does that where
    ignore_startup_parameters names them)."""
    return UsageError(
        f"a pooler at {settings.host or 'the default host'}:{settings.port or 5432} drops the start settings of pgsluice's"
        " sessions at the source",
        "set host and port to the PostgreSQL server itself",
    )
