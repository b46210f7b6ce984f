"""A pooler in front of a PostgreSQL server, as PgBouncer is one.

It lends each client one of a few sessions of the server, until the client leaves (session mode) or until the end of each
transaction (transaction mode). It resets nothing in between, as PgBouncer does in transaction mode. Passwords are not asked for.
Startup options of clients are passed over (PgBouncer: ``ignore_startup_parameters = options``); its own sessions may have some.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field

from pgsluice.shared.config.settings import PostgresSettings
from tests.servers.asyncio_server import AsyncioServer

_VERSION_3 = 196608
_READY, _COPY_IN, _KEY_DATA = b"Z", b"G", b"K"
_ENDS_A_REQUEST = (b"Q", b"S")  # Query, Sync
_ENDS_A_COPY = (b"c", b"f")
_TERMINATE = b"X"
_NUMBER_OF_OURS = 424242


@dataclass(eq=False, slots=True)
class _Session:
    """One of the server. ``greeting`` is what it said before it was ready first."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: bytes = field(default=b"")


class Pooler(AsyncioServer):
    """With ``sessions`` of the server for all clients of one database and role."""

    def __init__(self, server: PostgresSettings, *, sessions: int = 2, by_transaction: bool = True, options: str = "") -> None:
        super().__init__()
        self._server = server
        self._sessions = sessions
        self._by_transaction = by_transaction
        self._options = options

    async def listen(self) -> None:
        """Once it has its sessions."""
        self._free: asyncio.LifoQueue[_Session] = asyncio.LifoQueue()
        for _ in range(self._sessions):
            self._free.put_nowait(await self._open())
        await super().listen()

    async def _open(self) -> _Session:
        reader, writer = await asyncio.open_connection(self._server.host, self._server.port)
        wanted = ["user", self._server.user, "database", self._server.dbname, "client_encoding", "UTF8"]
        wanted += ["options", self._options] if self._options else []
        said = b"".join(text.encode() + b"\0" for text in wanted)
        writer.write(struct.pack(">ii", len(said) + 9, _VERSION_3) + said + b"\0")
        session = _Session(reader, writer)
        while (kind_and_body := await _message(reader))[0] != _READY:
            kind, body = kind_and_body
            session.greeting += _framed(kind, struct.pack(">ii", _NUMBER_OF_OURS, 0) if kind == _KEY_DATA else body)
        return session

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session: _Session | None = None
        try:
            await _read_startup(reader, writer)
            session = await self._free.get()
            writer.write(session.greeting + _framed(_READY, b"I"))
            if self._by_transaction:
                self._free.put_nowait(session)
                session = None
            while (message := await _message(reader))[0] != _TERMINATE:
                session = session or await self._free.get()
                session.writer.write(_framed(*message))
                if message[0] in _ENDS_A_REQUEST:
                    state = await self._answer(session, reader, writer)
                    if state == b"I" and self._by_transaction:
                        self._free.put_nowait(session)
                        session = None
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            if session is not None:
                self._free.put_nowait(session)
            writer.close()

    async def _answer(self, session: _Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Passes the answer on; the state of the transaction that it ends with."""
        while True:
            kind, body = await _message(session.reader)
            writer.write(_framed(kind, body))
            if kind == _READY:
                return body
            while kind == _COPY_IN and (copied := await _message(reader)):
                session.writer.write(_framed(*copied))
                if copied[0] in _ENDS_A_COPY:
                    break


async def _read_startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        body = await reader.readexactly(length - 4)
        if struct.unpack_from(">i", body) == (_VERSION_3,):
            return
        writer.write(b"N")  # no TLS, no GSSAPI


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return kind, await reader.readexactly(length - 4)


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body
