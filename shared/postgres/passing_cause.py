"""The cause of a transient failure of a statement, by the server's SQLSTATE."""

from __future__ import annotations

from pgsluice.shared.errors import Cause

_LOCK_CLASS = "40"
"""A deadlock, or a serialization failure: another transaction was in the way."""
_LOCK_STATES = frozenset({"55P03", "55006"})
_DISK_FULL = "53100"


def passing_cause(sqlstate: str | None, server: Cause) -> Cause:
    """Returns ``server`` (SOURCE or TARGET) unless the code is about a lock, or a full disk; ``sqlstate`` is None or ""
    for a broken connection."""
    code = sqlstate or ""
    if code.startswith(_LOCK_CLASS) or code in _LOCK_STATES:
        return Cause.LOCK
    return Cause.DISK_FULL if code == _DISK_FULL else server
