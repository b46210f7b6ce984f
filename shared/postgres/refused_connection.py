"""Why a PostgreSQL server refuses a connection, whatever language it speaks.

libpq gives no SQLSTATE for a connection that failed, only the server's message. That is in the server's ``lc_messages``, which
applies before any setting of ours, and which an ordinary role may not set. But libpq's trace (manual: "PQtrace") holds the
server's error with its code. So a refusal in a language that we do not read is asked for once more, with a trace in memory.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

_SERVER_MESSAGE = re.compile(r"failed: \S+:  ")
"""libpq writes ``<severity>:  <message>`` (two spaces) for what a server said, and nothing like it for what it says itself."""

_ERROR_CODE = re.compile(rb'\tErrorResponse\t.* C "([0-9A-Z]{5})" M ')

_REMEDIES = {
    "28P01": "check user and password",
    "28000": "check the user, and that a line of the server's pg_hba.conf lets it in",
    "3D000": "check the name of the database",
    "42501": "grant the role what it lacks: CONNECT on the database, and REPLICATION at the source",
}
"""What an operator can do about refusals that last."""


def comes_from_server(error: psycopg.Error) -> bool:
    """Whether a server answered: then ``refused_sqlstate`` can tell what."""
    return _SERVER_MESSAGE.search(str(error)) is not None


def lasting_remedy(sqlstate: str) -> str:
    """What to do when another attempt with the same settings cannot succeed; "" when it may."""
    return _REMEDIES.get(sqlstate, "")


def refused_sqlstate(parameters: Mapping[str, Any], timeout_s: float) -> str:
    """The code of the error by which a server refuses such a connection now; "" when none does. Blocks for so long at most."""
    trace = os.memfd_create("trace", os.MFD_CLOEXEC)  # never a file: it holds the exchange of passwords
    connection = pq.PGconn.connect_start(make_conninfo(**parameters).encode())
    try:
        _follow(connection, trace, time.monotonic() + timeout_s)
        os.lseek(trace, 0, os.SEEK_SET)
        with open(trace, "rb", closefd=False) as file:
            codes: list[bytes] = _ERROR_CODE.findall(file.read())
        return codes[-1].decode() if codes else ""
    finally:
        connection.finish()
        os.close(trace)


def _follow(connection: pq.abc.PGconn, trace: int, deadline: float) -> None:
    """Carries the connection to its end, good or bad."""
    if connection.status == pq.ConnStatus.BAD:
        return
    connection.trace(trace)
    while True:
        match connection.connect_poll():
            case pq.PollingStatus.READING:
                readable, writable = [connection.socket], []
            case pq.PollingStatus.WRITING:
                readable, writable = [], [connection.socket]
            case _:
                break
        left_s = deadline - time.monotonic()
        if left_s <= 0 or select.select(readable, writable, [], left_s) == ([], [], []):
            break
    connection.untrace()  # what is buffered is written then
