"""Who answers at an address where no NATS server greeted us.

A NATS server speaks first (``INFO {…}``). PostgreSQL and web servers wait for their clients, so a URL that names one of them by
mistake looks like a server that hangs; asked in their own language they tell who they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

PATIENCE_S = 2.0
NATS_PORT = 4222

_POSTGRES_SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"  # answered with one letter, before any authentication
_HTTP_REQUEST = b"HEAD / HTTP/1.0\r\n\r\n"


async def other_server(url: str) -> str:
    """What listens at ``url`` in place of NATS; "" when that is not known, or nobody does."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if parts.hostname is None or parts.scheme.startswith("ws"):
        return ""
    host, port = parts.hostname, parts.port or NATS_PORT
    if await _answer(host, port, _POSTGRES_SSL_REQUEST) in (b"S", b"N"):
        return "a PostgreSQL server"
    return "a web server" if (await _answer(host, port, _HTTP_REQUEST)).startswith(b"HTTP/") else ""


async def _answer(host: str, port: int, request: bytes) -> bytes:
    """The first bytes of what comes back; empty without an answer."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                return await reader.read(16)
            finally:
                writer.close()
    return b""
