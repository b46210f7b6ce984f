"""The replication connection: one walsender, read by hand through libpq.

psycopg has no replication API, but its ``pq`` layer shows libpq's: after START_REPLICATION the connection is in COPY BOTH mode
(manual: "Streaming Replication Protocol"); ``get_copy_data`` gives the server's messages, ``put_copy_data`` takes ours. The
socket is non-blocking and waited for with the event loop's reader and writer callbacks, never with psycopg's own wait
functions: those cancel the server's query when they are cancelled.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Self

import psycopg
from psycopg import pq, sql

from pgsluice.replicator.source.connection import TOO_LARGE, Connection, connect, is_too_large, server_said
from pgsluice.shared.broker.replicator_records import ANY_ORIGIN
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError
from pgsluice.shared.wire.position import LSN, POSTGRES_EPOCH, format_lsn, parse_lsn

XLOG_DATA = ord("w")
XLOG_DATA_HEADER_BYTES = 25  # kind, WAL start, WAL end, server clock

_KEEPALIVE = Struct(">xQqB")
_STATUS = Struct(">cQQQqB")

_RECEIVE_BUFFER_BYTES = 64 * 1024
_NEAR_S = 0.001
"""A server that answers within it can refill the receive buffer fast enough: 64 KiB each millisecond are 64 MB/s."""
_EPOCH_S = POSTGRES_EPOCH.timestamp()


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """What IDENTIFY_SYSTEM says. ``wal_end`` is where the server's WAL ends, as far as it is on disk."""

    system_id: str
    timeline: int
    wal_end: LSN


@dataclass(frozen=True, slots=True)
class Keepalive:
    """``wal_end``: everything the publication has below it was sent before."""

    wal_end: LSN
    reply_requested: bool

    @classmethod
    def decode(cls, message: memoryview) -> Keepalive:
        wal_end, _, reply_requested = _KEEPALIVE.unpack(message)
        return cls(LSN(wal_end), bool(reply_requested))


class WalSender:
    """One replication connection. Nothing but its methods may touch it, and no two of them wait at the same time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._waiting: asyncio.Future[None] | None = None
        self.read: Callable[[int], tuple[int, memoryview]] = self._pgconn.get_copy_data
        """libpq's PQgetCopyData: ``read(1)`` gives (length, message), (0, …) when nothing is buffered, (-1, …) at the end."""

    @classmethod
    async def connect(cls, settings: PostgresSettings) -> Self:
        """Raises as ``connection.connect`` does."""
        connection = await connect(settings, replication=True, raw=True)
        connection.pgconn.nonblocking = 1
        return cls(connection)

    async def close(self) -> None:
        await self._connection.close()

    async def identify(self) -> SystemIdentity:
        asked_at = time.monotonic()
        result = await self._command("IDENTIFY_SYSTEM")
        if time.monotonic() - asked_at < _NEAR_S:
            self.limit_receive_buffer()
        system_id, timeline, wal_end = (result.get_value(0, column) for column in range(3))
        assert system_id is not None
        assert timeline is not None
        assert wal_end is not None
        return SystemIdentity(system_id.decode(), int(timeline), parse_lsn(wal_end.decode()))

    async def switch_point(self, timeline: int, identity: SystemIdentity) -> LSN | None:
        """Where the server left ``timeline``, which was its own before; None when its history does not know it (manual: "The
        History File" of timelines, which TIMELINE_HISTORY sends)."""
        result = await self._command(f"TIMELINE_HISTORY {identity.timeline}")
        content = result.get_value(0, 1) or b""
        for line in content.decode("utf-8", "replace").splitlines():
            fields = line.partition("#")[0].split()
            if len(fields) >= 2 and int(fields[0]) == timeline:
                return parse_lsn(fields[1])
        return None

    def limit_receive_buffer(self) -> None:
        """For a server that is near. A walsender that meets an open window sends each change as a segment of its own, which costs
        both kernels more than the change costs Postgres; one that meets a closed window lets them gather."""
        with socket.socket(fileno=os.dup(self._pgconn.socket)) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)

    async def start(self, slot: str, publication: str, lsn: LSN, origin: str = ANY_ORIGIN) -> None:
        """Starts streaming at ``lsn``, or where the slot is when that is later. Servers before 16 take no ``origin`` but "any".
        Raises TransientError while somebody else reads the slot."""
        name = sql.Identifier(slot).as_string(self._connection)
        publications = sql.Literal(sql.Identifier(publication).as_string(self._connection)).as_string(self._connection)
        origins = "" if origin == ANY_ORIGIN else ", origin 'none'"
        options = f"(proto_version '1', publication_names {publications}{origins})"
        await self._command(f"START_REPLICATION SLOT {name} LOGICAL {format_lsn(lsn)} {options}")

    async def wait_readable(self) -> None:
        """Returns when the socket has something to read, the end of the connection included, or after ``wake``."""
        await self._wait_socket(readable=True)

    def wake(self) -> None:
        """Ends the wait in hand, if any."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def consume(self) -> None:
        """Moves what the socket holds (up to libpq's buffer) to where ``read`` finds it; never blocks."""
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise TransientError(f"the replication connection broke ({_one_line(str(error))})", "it is tried again") from None

    def send_status(self, received: LSN, confirmed: LSN, *, reply: bool) -> None:
        """Tells the server what we have received and what it may forget; ``reply`` asks for a keepalive in return.

        Never blocks: what the socket does not take is sent by a later call or by ``consume``.
        """
        now = int((time.time() - _EPOCH_S) * 1e6)
        try:
            self._pgconn.put_copy_data(_STATUS.pack(b"r", received, confirmed, confirmed, now, reply))
            self._pgconn.flush()
        except psycopg.Error as error:
            raise TransientError(f"the replication connection broke ({_one_line(str(error))})", "it is tried again") from None

    def end_error(self) -> PgsluiceError:
        """Why the server ended the stream, after ``read`` returned a negative length."""
        try:
            result = self._pgconn.get_result()
        except psycopg.Error as error:
            return TransientError(f"the replication connection broke ({_one_line(str(error))})", "it is tried again")
        if result is None or result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            return TransientError("the server ended the replication stream", "it is tried again when the server is back")
        return stream_error(result)

    async def _command(self, command: str) -> pq.abc.PGresult:
        """Sends ``command`` and gives its result (the first, for one that starts a stream)."""
        pgconn = self._pgconn
        pgconn.send_query(command.encode())
        while pgconn.flush():
            await self._wait_socket(readable=False)
        while pgconn.is_busy():
            await self.wait_readable()
            self.consume()
        result = pgconn.get_result()
        if result is None or result.status == pq.ExecStatus.FATAL_ERROR:
            raise self.end_error() if result is None else stream_error(result)
        while result.status != pq.ExecStatus.COPY_BOTH and pgconn.get_result() is not None:
            pass
        return result

    async def _wait_socket(self, *, readable: bool) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._pgconn.socket
        self._waiting = loop.create_future()
        add, remove = (loop.add_reader, loop.remove_reader) if readable else (loop.add_writer, loop.remove_writer)
        add(descriptor, self.wake)
        try:
            await self._waiting
        finally:
            remove(descriptor)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _place(result: pq.abc.PGresult) -> str:
    """Where the server was in the WAL. Nothing else of its context is shown."""
    context = (result.error_field(pq.DiagnosticField.CONTEXT) or b"").decode("utf-8", "replace")
    found = re.search(r"associated LSN ([0-9A-F]+/[0-9A-F]+)", context)
    return f" at {found[1]}" if found else ""


def stream_error(result: pq.abc.PGresult) -> PgsluiceError:
    """What the operator reads when the walsender fails. The server's detail is left out: it can hold row values. Where the server
    does not speak English, the catalog says at the next attempt that the slot is lost (``slot``)."""
    sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"connection lost").decode("utf-8", "replace")
    function = result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) or b""
    fact = f"replication failed{server_said(sqlstate, text)}"
    if is_too_large(sqlstate, text):
        return TerminalError(
            f"the source cannot decode a change{_place(result)}{server_said(sqlstate, text)}",
            f"{TOO_LARGE}; the slot cannot pass this one: run 'pgsluice drop', empty the target and start again with"
            " --copy-and-stream",
        )
    if "can no longer" in text or "invalidated" in text or "has already been removed" in text:
        return TerminalError(fact, "the slot is lost; run 'pgsluice drop' and start again, after raising max_slot_wal_keep_size")
    if sqlstate.startswith("22"):  # the message may hold a value
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
            return TerminalError(fact, "give the role what it lacks, for example ALTER ROLE … REPLICATION")
        case "55006":
            return TransientError(fact, "stop the other replicator, or wait until the server notices that it is gone")
    if not sqlstate or sqlstate[:2] in ("08", "40", "53", "55", "57", "58"):
        return TransientError(fact, "it is tried again")
    return TerminalError(fact, "see the server's log")
