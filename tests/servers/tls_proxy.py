"""TLS in front of a PostgreSQL server that speaks none: it answers the client's SSLRequest and passes on what is inside."""

from __future__ import annotations

import asyncio
import ssl
import struct

from tests.servers.asyncio_server import AsyncioServer, pass_on
from tests.servers.child import HOST

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)


class TlsProxy(AsyncioServer):
    """Forwards connections to ``upstream_port``; closed connections are closed on the other side too."""

    def __init__(self, upstream_port: int, certificates: ssl.SSLContext) -> None:
        super().__init__()
        self._upstream_port = upstream_port
        self._certificates = certificates

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == _SSL_REQUEST, "the client asks for no TLS"
        writer.write(b"S")
        await writer.start_tls(self._certificates)
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
        await asyncio.gather(pass_on(reader, upstream_writer), pass_on(upstream_reader, writer))
