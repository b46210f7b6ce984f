"""The replication connection: one walsender, commanded through libpq, then streaming (``copy_both``).

psycopg has no replication API, but its ``pq`` layer shows libpq's. The socket is non-blocking and waited for with the event
loop's reader and writer callbacks, never with psycopg's own wait functions: those cancel the server's query when they are
cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import time
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg import pq, sql

from pgsluice.replicator.source.connection import (
    APPLICATION_NAME,
    WALSENDER_TIMEOUT_MS,
    Connection,
    connect_for_replication,
)
from pgsluice.replicator.source.copy_both import CopyBoth, LibpqCopyBoth, PlainCopyBoth, socket_of
from pgsluice.replicator.source.copy_data import COPY_DATA, PASSED_OVER, WantedMessages, encode_status, message_end
from pgsluice.replicator.source.stream_end import broken, ended, result_error
from pgsluice.shared.broker.replicator_records import ANY_ORIGIN
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.position import LSN, POSTGRES_EPOCH, format_lsn, parse_lsn

_RECEIVE_BUFFER_BYTES = 64 * 1024
_NEAR_S = 0.001
"""A server that answers within it can refill the receive buffer fast enough: 64 KiB each millisecond are 64 MB/s."""
_EPOCH_S = POSTGRES_EPOCH.timestamp()


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM. ``wal_end`` is where the server's WAL ends, as far as it is on disk."""

    system_id: str
    timeline: int
    wal_end: LSN


class WalSender:
    """One replication connection. Nothing but its methods may touch it, and no two of them wait at the same time."""

    def __init__(self, connection: Connection, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        """The server ends it when it hears nothing for so long."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._waiting: asyncio.Future[None] | None = None
        self.stream: CopyBoth
        """The stream that ``start`` began."""

    @classmethod
    async def connect(
        cls, settings: PostgresSettings, application_name: str = APPLICATION_NAME, timeout_ms: int = WALSENDER_TIMEOUT_MS
    ) -> Self:
        """Raises as ``connection.connect`` does."""
        connection = await connect_for_replication(settings, application_name, timeout_ms, raw=True)
        connection.pgconn.nonblocking = 1
        return cls(connection, timeout_ms)

    @property
    def process(self) -> int:
        """The server's number of it."""
        return self._connection.info.backend_pid

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
        """Returns the LSN where the server left ``timeline``, which was its own before; None when its history does not
        know it (manual: "The History File" of timelines, which TIMELINE_HISTORY sends)."""
        result = await self._command(f"TIMELINE_HISTORY {identity.timeline}")
        content = result.get_value(0, 1) or b""
        for line in content.decode("utf-8", "replace").splitlines():
            fields = line.partition("#")[0].split()
            if len(fields) >= 2 and int(fields[0]) == timeline:
                return parse_lsn(fields[1])
        return None

    def limit_receive_buffer(self) -> None:
        """Limits the buffer, for a server that is near. A walsender that meets an open window sends each change as a
        separate segment, which costs both kernels more than the change costs Postgres; one that meets a closed window
        lets them gather."""
        with self._socket() as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)

    @functools.cached_property
    def has_room(self) -> bool:
        """Returns whether the connection buffers many changes while nothing reads. A Unix socket buffers a few hundred."""
        with self._socket() as duplicate:
            return duplicate.family != socket.AF_UNIX

    def _socket(self) -> socket.socket:
        """Returns the connection under another descriptor."""
        return socket.socket(fileno=os.dup(socket_of(self._pgconn)))

    async def start(
        self, slot: str, publication: str, lsn: LSN, origin: str = ANY_ORIGIN, wanted: WantedMessages | None = None
    ) -> None:
        """Starts streaming at ``lsn``, or where the slot is when that is later. If logical messages are ``wanted``,
        others can come too. Servers before 16 accept no ``origin`` but "any". Raises TransientError while another
        process reads the slot."""
        name = sql.Identifier(slot).as_string(self._connection)
        publications = sql.Literal(sql.Identifier(publication).as_string(self._connection)).as_string(self._connection)
        origins = "" if origin == ANY_ORIGIN else ", origin 'none'"
        messages = "false" if wanted is None else "true"
        options = f"(proto_version '1', publication_names {publications}, messages '{messages}'{origins})"
        command = f"START_REPLICATION SLOT {name} LOGICAL {format_lsn(lsn)} {options}"
        if await self._is_encrypted():
            await self._command(command)
            self.stream = LibpqCopyBoth(self._pgconn)
        else:
            self.stream = stream = PlainCopyBoth(self._pgconn, wanted)
            stream.start(command)
            while not stream.started():
                await self.wait_readable()

    async def _is_encrypted(self) -> bool:
        """Returns whether bytes pass libpq's own layers; for GSSAPI only the server knows."""
        if self._pgconn.ssl_in_use:
            return True
        result = await self._command("SELECT encrypted FROM pg_stat_gssapi WHERE pid = pg_backend_pid()")
        return result.ntuples != 1 or result.get_value(0, 0) != b"f"

    async def wait_readable(self) -> None:
        """Returns when the socket has something to read, the end of the connection included, or after ``wake``."""
        await self._wait_socket(readable=True)

    def wake(self) -> None:
        """Ends the current wait, if any."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def send_status(self, received: LSN, confirmed: LSN, *, reply: bool) -> None:
        """Sends to the server what was received and what it may discard; ``reply`` asks for a keepalive in return."""
        self.stream.send(encode_status(received, confirmed, int((time.time() - _EPOCH_S) * 1e6), reply=reply))

    async def finish(self, patience_s: float) -> None:
        """Ends the stream; what is still under way is thrown away. Then the server has read every status: closing the
        connection while it sends would make it miss the last. Returns after ``patience_s`` at the latest."""
        with contextlib.suppress(TransientError, TimeoutError):  # the stream has ended, or the connection
            async with asyncio.timeout(patience_s):
                self.stream.finish()
                while not self._has_finished():
                    await self.wait_readable()

    def _has_finished(self) -> bool:
        """Returns whether what has arrived ends the stream."""
        while (data := self.stream.receive()) is not None:
            start = 0
            while (end := message_end(data, start)) >= 0:
                if data[start] != COPY_DATA and data[start] not in PASSED_OVER:
                    return True
                start = end
            self.stream.keep(data[start:])
        return False

    async def _command(self, command: str) -> pq.abc.PGresult:
        """Sends ``command`` and returns its result (the first, if it starts a stream)."""
        pgconn = self._pgconn
        try:
            pgconn.send_query(command.encode())
            while pgconn.flush():
                await self._wait_socket(readable=False)
            while pgconn.is_busy():
                await self.wait_readable()
                pgconn.consume_input()
            result = pgconn.get_result()
        except psycopg.Error as error:
            raise broken(error) from None
        if result is None:
            raise ended()
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise result_error(result)
        while result.status != pq.ExecStatus.COPY_BOTH and pgconn.get_result() is not None:
            pass
        return result

    async def _wait_socket(self, *, readable: bool) -> None:
        loop, descriptor = asyncio.get_running_loop(), socket_of(self._pgconn)
        self._waiting = loop.create_future()
        add, remove = (loop.add_reader, loop.remove_reader) if readable else (loop.add_writer, loop.remove_writer)
        add(descriptor, self.wake)
        try:
            await self._waiting
        finally:
            remove(descriptor)
