"""A proxy in front of a server that loses what it has acknowledged.

So does a balancer or a firewall that forgot a connection: both ends believe that they are connected. Connections that are made
afterwards are passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class _Lost:
    """What becomes of one connection: which directions are lost."""

    def __init__(self) -> None:
        self.requests = False
        self.answers = False


class LosingProxy:
    """Forwards connections to ``port``; closed connections are closed on the other side too."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self._upstream_port = port
        self._connections: set[_Lost] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def lose(self, *, requests: bool = True, answers: bool = True) -> None:
        """From now on, of the connections that there are."""
        for lost in list(self._connections):
            lost.requests, lost.answers = requests, answers

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lost = _Lost()
        self._connections.add(lost)
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
            requests = _pass_on(reader, upstream_writer, lost, "requests")
            await asyncio.gather(requests, _pass_on(upstream_reader, writer, lost, "answers"))
        self._connections.discard(lost)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: _Lost, direction: str) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            if not getattr(lost, direction):
                writer.write(data)
                await writer.drain()
        if getattr(lost, direction):
            return  # the end is lost too
    writer.close()
