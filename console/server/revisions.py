"""What a request says of the revision that it replaces: a thing is created without If-Match, and replaced by whoever names it."""

from __future__ import annotations

from pgsluice.console.server.endpoint_table import Call
from pgsluice.console.server.problem import Kind, Problem


def check_revision(call: Call, revision: int | None, what: str) -> None:
    """``revision`` is what is there now, None for nothing. Raises Problem when the request does not name it."""
    if revision is None and call.revision is None:
        return
    if call.revision is None:
        raise Problem(Kind.REVISION_WANTED, "If-Match is missing", "send the ETag of what you have read, or *", "If-Match")
    if call.revision != "*" and call.revision != revision:
        raise stale(what)


def stale(what: str) -> Problem:
    """Somebody was faster. ``what`` begins the sentence."""
    return Problem(Kind.STALE, f"{what} of another revision", "read it again, and decide anew", "If-Match")
