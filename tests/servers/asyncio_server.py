"""A server of a test's own, whose connections are served on an event loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.servers.child import HOST

LONGEST_START_S = 30.0


class AsyncioServer(ABC):
    """Listens on ``port`` of HOST while its context is entered."""

    def __init__(self) -> None:
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(LONGEST_START_S), "the server does not listen"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self.listen()
        await self._stop.wait()
        self._listening.close()

    async def listen(self) -> None:
        self._listening = await asyncio.start_server(self.serve, HOST, 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        self._ready.set()


async def pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_lost: Callable[[], bool] = lambda: False
) -> None:
    """Passes on what comes until it ends, then closes ``writer``; but loses all of it, the end too, while ``is_lost``."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            if not is_lost():
                writer.write(data)
                await writer.drain()
    if not is_lost():
        writer.close()
