"""TLS in front of a PostgreSQL server that speaks none: it answers the client's SSLRequest and passes on what is inside."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import threading
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)


class TlsProxy:
    """Forwards connections to ``port``; closed connections are closed on the other side too."""

    def __init__(self, port: int, certificates: ssl.SSLContext) -> None:
        self.port = 0
        self._upstream_port = port
        self._certificates = certificates
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == _SSL_REQUEST, "the client asks for no TLS"
        writer.write(b"S")
        await writer.start_tls(self._certificates)
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
        await asyncio.gather(_pass_on(reader, upstream_writer), _pass_on(upstream_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
