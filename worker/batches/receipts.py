"""An error on its way from a Spark task to the driver.

An exception raised in a task reaches the driver as text inside a Java stack trace, after Spark has retried the task. Errors
that we raise on purpose travel as data instead, so that the driver can raise the same error again.
"""

from __future__ import annotations

import orjson

from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError


def encode_error(error: PgsluiceError) -> bytes:
    return orjson.dumps({"transient": isinstance(error, TransientError), "fact": error.fact, "remedy": error.remedy})


def decode_error(carried: bytes) -> PgsluiceError:
    """The error that ``encode_error`` was given, as TransientError or TerminalError."""
    content = orjson.loads(carried)
    kind = TransientError if content["transient"] else TerminalError
    return kind(content["fact"], content["remedy"])
