"""Sequences that belong to columns of target tables (serial and identity columns)."""

from __future__ import annotations

from worker.sinks.postgres.connection import Connection

_OWNED = """
FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND d.deptype IN ('a', 'i')
"""
_RESTART = "SELECT setval(s.seqrelid, s.seqstart, false)" + _OWNED


def restart_sequences(connection: Connection, oid: int) -> None:
    """As TRUNCATE … RESTART IDENTITY does, but that it is not undone by a rollback."""
    connection.execute(_RESTART, [oid])
