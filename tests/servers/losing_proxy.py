"""A proxy in front of a server that loses what it has acknowledged.

So does a balancer or a firewall that forgot a connection: both ends believe that they are connected. Connections that are made
afterwards are passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from tests.servers.asyncio_server import AsyncioServer, pass_on
from tests.servers.child import HOST


@dataclass(eq=False)
class _Lost:
    """Which directions of one connection are lost. ``writer`` is the client's side of it. ``serving`` is kept here: asyncio keeps
    no task that waits, and one that is collected as garbage closes the server's side."""

    writer: asyncio.StreamWriter
    serving: asyncio.Task[None] | None
    requests: bool = False
    answers: bool = False


class LosingProxy(AsyncioServer):
    """Forwards connections to ``upstream_port``; closed connections are closed on the other side too."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self._upstream_port = upstream_port
        self._connections: set[_Lost] = set()

    def lose(self, *, requests: bool = True, answers: bool = True) -> None:
        """From now on, of the connections that there are."""
        for lost in list(self._connections):
            lost.requests, lost.answers = requests, answers

    def tell_clients(self) -> None:
        """Loses the connections that there are, and tells the clients so, but not the server."""
        self.lose()
        for lost in list(self._connections):
            self.loop.call_soon_threadsafe(lost.writer.close)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lost = _Lost(writer, asyncio.current_task())
        self._connections.add(lost)
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
            requests = pass_on(reader, upstream_writer, lambda: lost.requests)
            await asyncio.gather(requests, pass_on(upstream_reader, writer, lambda: lost.answers))
        self._connections.discard(lost)
