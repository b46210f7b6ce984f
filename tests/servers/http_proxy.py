"""A proxy in front of an HTTP server that does what a network and a busy server may do, when a test says so.

    with HttpProxy(server.port) as proxy:
        proxy.before = lambda exchange: Refusal(429) if exchange.number < 10 else None     # a storm
        proxy.after = lambda exchange: Cut() if exchange.number == 20 else None            # done, and the answer is lost

``before`` is asked when a request was read and before it is forwarded, ``after`` when the server has answered and before the
client hears of it. Each may wait as long as it likes, and do what it likes meanwhile: a request that ``before`` holds back is
forwarded when that returns, though its client may be gone. Requests are numbered from 1 in the order of their arrival.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, assert_never

HOST = "127.0.0.1"
UPSTREAM_TIMEOUT_S = 120.0

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


@dataclass(frozen=True)
class Exchange:
    """One request. ``status`` is that of the server's answer, 0 before."""

    number: int
    method: str
    target: str
    body: bytes
    status: int = 0


@dataclass(frozen=True)
class Refusal:
    """The proxy answers by itself."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


@dataclass(frozen=True)
class Cut:
    """The client's connection is closed without an answer."""


Fault = Refusal | Cut


class HttpProxy:
    """Forwards to ``upstream_port``. Leaving the context closes all connections."""

    def __init__(self, upstream_port: int, port: int = 0) -> None:
        self.before: Callable[[Exchange], Fault | None] = lambda exchange: None
        self.after: Callable[[Exchange], Fault | None] = lambda exchange: None
        self.exchanges: list[Exchange] = []
        """Those that the server answered, in that order."""
        self.upstream_port = upstream_port
        self._arrived = 0
        self._lock = threading.Lock()
        self._server = _Listener((HOST, port), _Forwarding)
        self._server.owner = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def number(self) -> int:
        """Of the request that has just arrived."""
        with self._lock:
            self._arrived += 1
            return self._arrived

    @property
    def arrived(self) -> int:
        """How many requests came so far."""
        return self._arrived


class _Listener(http.server.ThreadingHTTPServer):
    owner: HttpProxy
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of many tests."""


class _Forwarding(http.server.BaseHTTPRequestHandler):
    """One client's connection, with a connection of its own to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self._upstream = http.client.HTTPConnection(HOST, self.server.owner.upstream_port, timeout=UPSTREAM_TIMEOUT_S)

    def finish(self) -> None:
        self._upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""

    def _exchange(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if len(body) < size:  # the client died in the middle of its request
            self.close_connection = True
            return
        owner = self.server.owner
        arrived = Exchange(owner.number(), self.command, self.path, body)
        if self._suffers(owner.before(arrived)):
            return
        try:
            status, headers, content = self._forward(body)
        except (OSError, http.client.HTTPException):
            self._upstream.close()
            self._suffers(Cut())
            return
        answered = Exchange(arrived.number, arrived.method, arrived.target, body, status)
        owner.exchanges.append(answered)
        if not self._suffers(owner.after(answered)):
            self._send(status, headers, content)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _exchange  # noqa: N815  # the standard library's names

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        self._upstream.request(self.command, self.path, body or None, headers)
        answer = self._upstream.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        return answer.status, kept, content

    def _suffers(self, fault: Fault | None) -> bool:
        match fault:
            case None:
                return False
            case Refusal():
                self._send(fault.status, fault.headers, fault.body)
            case Cut():
                self.close_connection = True
            case unreachable:
                assert_never(unreachable)
        return True

    def _send(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        try:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
        except OSError:  # the client did not wait for it
            self.close_connection = True
