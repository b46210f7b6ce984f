"""The errors of JetStream, and of its client, sorted: transient ones, and others.

A cluster of NATS servers has no leader for some seconds now and then, and no quorum until it is repaired. Neither is a
mistake of configuration, whatever name the client has for it. Only this module knows the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import nats.errors
import nats.js.errors

from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError

# JetStream's error codes (nats-server, server/errors.json)
STREAM_NOT_FOUND = 10059
NO_MESSAGE_FOUND = 10037
MESSAGE_NOT_FOUND = 10043
WRONG_LAST_SEQUENCE = frozenset({10071, 10070, 10164})
STREAM_FULL = frozenset({10077, 10047, 10023, 10122})
_NO_ROOM = frozenset({10047, 10023})
_TOO_LARGE = _NO_ROOM | {10002, 10122}  # for what the account may have, for what one stream may have
_SUBJECTS_OVERLAP = 10065
_NO_PEERS = 10005
_DUPLICATE_IN_PROCESS = 10158  # the first copy of the message is still being stored: its acknowledgement is late, not lost
_INCOMPLETE_BATCH = 10176  # another leader has the rest of an atomic batch, or after ten seconds none
_NOT_HERE = frozenset({10076, 10039, 10035})  # JetStream is off: for the server, for the account

_PASSING_STATUS = frozenset({429, 500, 503})  # too many requests at once, or no server to accept them

FULL_STREAM_REMINDER_S = 10.0
"""Interval at which a publisher logs that it waits for room in its stream."""

CLIENT_ERRORS = (nats.errors.Error, OSError)
"""Everything that a call of nats-py raises on its own: without an answer, or for an answer that is an error."""

_MISTAKES = (
    nats.errors.MaxPayloadError,
    nats.errors.BadSubjectError,
    nats.errors.BadHeaderError,
    nats.js.errors.InvalidKeyError,
    nats.js.errors.InvalidBucketNameError,
)


_VIOLATION = re.compile(r"permissions violation for (publish|subscription) to \"?([^\" ]+)", re.IGNORECASE)


def denied_by(error: Exception) -> str:
    """Returns what the server did not permit, in lower case as nats-py writes it, like ``publish
    pgsluice.orders.changes``; "" for any other error."""
    found = _VIOLATION.search(str(error))
    return "" if found is None else f"{found[1].replace('subscription', 'subscribe')} {found[2]}".lower()


def is_passing(error: Exception) -> bool:
    """Returns whether the same call may succeed later, after nats-py raised ``error``: no answer, or the answering
    server has no leader."""
    if isinstance(error, nats.js.errors.ServiceUnavailableError | nats.js.errors.ServerError):
        return error.err_code not in _NOT_HERE
    if isinstance(error, nats.js.errors.APIError):
        return is_passing_answer(answer_of(error))
    return isinstance(error, CLIENT_ERRORS) and not isinstance(error, _MISTAKES)


def answer_of(error: nats.js.errors.APIError) -> Mapping[str, Any]:
    """Returns the error object of the answer that nats-py made ``error`` of."""
    return {"code": error.code, "err_code": error.err_code, "description": error.description or ""}


def is_passing_answer(error: Mapping[str, Any]) -> bool:
    """Like ``is_passing``, for the error object of an answer of JetStream's API. A full stream is not transient."""
    code = error.get("err_code")
    if code in _NO_ROOM or code in _NOT_HERE:
        return False
    if code == _NO_PEERS:
        return "offline" in str(error.get("description"))
    return code in (_DUPLICATE_IN_PROCESS, _INCOMPLETE_BATCH) or error.get("code") in _PASSING_STATUS


def is_too_large(error: Mapping[str, Any]) -> bool:
    """Returns whether the error object refuses a stream for its size."""
    code = error.get("err_code")
    return code in _TOO_LARGE or (code == _NO_PEERS and "storage" in str(error.get("description")))


def payload_error(what: str) -> PgsluiceError:
    """Returns the error for ``what``, which does not fit into one message."""
    return TerminalError(
        f"{what} is larger than the NATS server's max_payload", "raise max_payload in its configuration; its default is 1MB"
    )


def absent_error(what: str) -> PgsluiceError:
    """Returns the error for a missing ``what`` that only an administrator creates."""
    return TerminalError(
        f"{what} does not exist, and nats-create-streams is false", "have an administrator run 'pgsluice nats create'"
    )


def publish_error(stream: str, error: Mapping[str, Any], remedy: str) -> PgsluiceError:
    """Returns the error when JetStream will never accept a message for ``stream``."""
    fact = f"JetStream refuses messages for stream {stream}: {error.get('description', '')} (error {error.get('err_code')})"
    return TerminalError(fact, f"check the stream's limits; {remedy}")


def stream_error(stream: str, error: Mapping[str, Any]) -> PgsluiceError:
    """Returns the error when JetStream refuses an operation on ``stream``."""
    code, text = error.get("err_code"), error.get("description", "")
    if code == _SUBJECTS_OVERLAP:
        return TerminalError(
            f"stream {stream} cannot be created: {text}", "another stream listens on this group's subject; remove it"
        )
    if is_passing_answer(error):
        return TransientError(
            f"JetStream refuses an operation on stream {stream}: {text} (error {code})", "it is tried again", Cause.NATS
        )
    return TerminalError(
        f"JetStream refuses stream {stream}: {text} (error {code})",
        "check stream-max-bytes, stream-replicas and the account's JetStream limits",
    )
