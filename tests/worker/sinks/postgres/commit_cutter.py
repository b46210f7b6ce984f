"""A network that fails at the worst moment: between a COMMIT and the answer to it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65536


class CommitCutter:
    """Passes TCP connections on to a server. When ``cut_next_commit`` is set, the next COMMIT ends its connection: before the
    server has read it, or after the server has answered."""

    def __init__(self, host: str, port: int, reaches_server: bool) -> None:
        self.cut_next_commit = threading.Event()
        self._server = (host, port)
        self._reaches_server = reaches_server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                silenced = threading.Event()
                threading.Thread(target=self._pass_requests, args=(client, server, silenced), daemon=True).start()
                threading.Thread(target=self._pass_answers, args=(client, server, silenced), daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket, silenced: threading.Event) -> None:
        with client, server, contextlib.suppress(OSError):  # either side is gone
            while data := client.recv(_CHUNK_BYTES):
                if b"COMMIT" in data and self.cut_next_commit.is_set():
                    silenced.set()
                    self._cut(client, server, data)
                    return
                server.sendall(data)

    def _pass_answers(self, client: socket.socket, server: socket.socket, silenced: threading.Event) -> None:
        with contextlib.suppress(OSError):  # either side is gone
            while data := server.recv(_CHUNK_BYTES):
                if not silenced.is_set():
                    client.sendall(data)

    def _cut(self, client: socket.socket, server: socket.socket, commit: bytes) -> None:
        if self._reaches_server:
            server.sendall(commit)
            server.shutdown(socket.SHUT_WR)
            while server.recv(_CHUNK_BYTES):  # until the server has closed, as it does after its answer
                pass
        else:
            server.shutdown(socket.SHUT_RDWR)
        self.cut_next_commit.clear()
        client.shutdown(socket.SHUT_RDWR)
