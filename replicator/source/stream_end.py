"""Errors of a replication stream that ended or did not begin."""

from __future__ import annotations

import re
from collections.abc import Mapping

from psycopg import pq

from pgsluice.replicator.source.connection import TOO_LARGE, is_too_large, server_said
from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError
from pgsluice.shared.postgres.passing_cause import passing_cause


def broken(how: object) -> TransientError:
    """Returns the error of a connection that failed below the protocol."""
    return TransientError(f"the replication connection broke ({' '.join(str(how).split())})", "it is tried again", Cause.SOURCE)


def ended() -> TransientError:
    """Returns the error after the server ended the stream, as it does when it is stopped."""
    return TransientError("the server ended the replication stream", "it is tried again when the server is back", Cause.SOURCE)


def result_error(result: pq.abc.PGresult) -> PgsluiceError:
    """Returns the error for the server's error as libpq has it."""
    return stream_error({field: found for field in pq.DiagnosticField if (found := result.error_field(field)) is not None})


def stream_error(fields: Mapping[int, bytes]) -> PgsluiceError:
    """Returns the error when the walsender fails with these ``pq.DiagnosticField``. The server's detail is left out: it
    can hold row values. If the server does not use English, the catalog shows at the next attempt that the slot is lost
    (``slot``)."""
    sqlstate = fields.get(pq.DiagnosticField.SQLSTATE, b"").decode("ascii", "replace")
    text = fields.get(pq.DiagnosticField.MESSAGE_PRIMARY, b"connection lost").decode("utf-8", "replace")
    function = fields.get(pq.DiagnosticField.SOURCE_FUNCTION, b"")
    fact = f"replication failed{server_said(sqlstate, text)}"
    if is_too_large(sqlstate, text):
        return TerminalError(
            f"the source cannot decode a change{_place(fields)}{server_said(sqlstate, text)}",
            f"{TOO_LARGE}; the slot cannot pass this one: run 'pgsluice drop', empty the target and start again with"
            " --mode copy-and-stream",
        )
    if "can no longer" in text or "invalidated" in text or "has already been removed" in text:
        return TerminalError(fact, "the slot is lost; run 'pgsluice drop' and start again, after raising max_slot_wal_keep_size")
    if sqlstate.startswith("22"):  # the message can contain a value
        return TerminalError(
            f"replication failed: the source cannot send a value of a row (SQLSTATE {sqlstate})",
            "the source's log names it; it cannot be skipped: run 'pgsluice drop', correct the row or leave its table out of"
            " 'tables', and start again with an empty target",
        )
    match sqlstate:
        case "42704" if function == b"get_publication_oid":
            return TerminalError(fact, "the publication was removed while the slot needs it; run 'pgsluice drop' and start again")
        case "42704":
            return TerminalError(fact, "the replication slot is gone; run 'pgsluice drop' and start again")
        case "42501":
            return TerminalError(fact, "grant the role the missing attribute, for example ALTER ROLE … REPLICATION")
        case "55006":
            return TransientError(fact, "stop the other replicator, or wait until the server notices that it is gone", Cause.LOCK)
    if not sqlstate or sqlstate[:2] in ("08", "40", "53", "55", "57", "58"):
        return TransientError(fact, "it is tried again", passing_cause(sqlstate, Cause.SOURCE))
    return TerminalError(fact, "see the server's log")


def _place(fields: Mapping[int, bytes]) -> str:
    """Returns the server's position in the WAL. Nothing else of its context is shown."""
    context = fields.get(pq.DiagnosticField.CONTEXT, b"").decode("utf-8", "replace")
    found = re.search(r"associated LSN ([0-9A-F]+/[0-9A-F]+)", context)
    return f" at {found[1]}" if found else ""
