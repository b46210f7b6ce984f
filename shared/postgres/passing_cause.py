"""What has to become better when a statement failed and may succeed later, by the server's SQLSTATE."""

from __future__ import annotations

from pgsluice.shared.errors import Cause

_LOCK_CLASS = "40"
"""A deadlock, or a serialization failure: somebody else's transaction was in the way."""
_LOCK_STATES = frozenset({"55P03", "55006"})
_DISK_FULL = "53100"


def passing_cause(sqlstate: str | None, server: Cause) -> Cause:
    """``server`` (SOURCE or TARGET) unless the code is of somebody's lock, or of a full disk; it is None or "" for a connection
    that broke."""
    code = sqlstate or ""
    if code.startswith(_LOCK_CLASS) or code in _LOCK_STATES:
        return Cause.LOCK
    return Cause.DISK_FULL if code == _DISK_FULL else server
