"""A real HTTP server that keeps what it was sent, and answers as a test says.

    with HttpServer() as server:
        server.answers = [Answer(500), Answer(429, {"Retry-After": "2"})]     # then 200 again

With a certificate it speaks TLS. Connections are kept alive; each has a thread.
"""

from __future__ import annotations

import contextlib
import enum
import http.server
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import orjson

HOST = "127.0.0.1"


class Failure(enum.Enum):
    """What happens instead of an answer."""

    HANG = "reads the request and says nothing until the server stops"
    DRIP = "sends a byte of the answer now and then until the server stops"
    CLOSE = "reads the request and closes"
    CLOSE_IN_ANSWER = "closes in the middle of the answer's body"
    CLOSE_AFTER = "answers, and closes without having said so"
    CLOSE_EARLY = "answers 413 and closes without having read the request"


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"ok"


@dataclass(frozen=True)
class Received:
    """One request. ``peer_port`` tells connections apart; header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    peer_port: int
    at: float
    answer: Answer | Failure

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects of the body, whatever its form."""
        if self.headers["content-type"] == "application/x-ndjson":
            return [orjson.loads(line) for line in self.body.splitlines()]
        content = orjson.loads(self.body)
        return content if isinstance(content, list) else [content]

    @property
    def is_accepted(self) -> bool:
        return isinstance(self.answer, Answer) and 200 <= self.answer.status < 300


class HttpServer:
    """``answers`` are used up first, one for each request in their order of arrival; then ``answer`` says what to do with each.
    ``delay_s`` passes before every answer."""

    def __init__(self, certificates: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.requests: list[Received] = []
        self.answers: list[Answer | Failure] = []
        self.answer: Callable[[Received], Answer | Failure] = lambda request: Answer()
        self.delay_s = 0.0
        self.under_way = self.most_under_way = 0
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self._server = _Listener((HOST, port), _Exchange)
        self._server.owner = self
        self._is_tls = certificates is not None
        if certificates is not None:
            self._server.socket = certificates.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._is_tls else 'http'}://{HOST}:{self.port}/hook?from=test"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def accepted(self) -> list[Received]:
        """In the order in which they were answered."""
        return [request for request in self.requests if request.is_accepted]

    def objects(self) -> list[dict[str, Any]]:
        """Those of all accepted requests."""
        return [each for request in self.accepted for each in request.objects]


class _Listener(http.server.ThreadingHTTPServer):
    owner: HttpServer
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of many tests."""


class _Exchange(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def do_POST(self) -> None:
        owner = self.server.owner
        with owner.lock:
            owner.under_way += 1
            owner.most_under_way = max(owner.most_under_way, owner.under_way)
        try:
            self._answer(owner)
        finally:
            with owner.lock:
                owner.under_way -= 1

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""

    def _answer(self, owner: HttpServer) -> None:
        with owner.lock:
            planned = owner.answers.pop(0) if owner.answers else None
        if planned is Failure.CLOSE_EARLY:
            self._close_early()
            return
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if len(body) < size:  # the client died in the middle of its request
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(self.command, self.path, headers, body, self.client_address[1], time.monotonic(), Answer())
        answer = planned or owner.answer(received)
        owner.stopped.wait(owner.delay_s)
        with owner.lock:
            owner.requests.append(replace(received, answer=answer))
        match answer:
            case Answer():
                self._send(answer)
            case Failure():
                self._fail(answer, owner)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def _fail(self, failure: Failure, owner: HttpServer) -> None:
        self.close_connection = True
        match failure:
            case Failure.HANG:
                owner.stopped.wait()
            case Failure.DRIP:
                with contextlib.suppress(OSError):
                    while not owner.stopped.wait(0.1):
                        self.wfile.write(b"H")
            case Failure.CLOSE_IN_ANSWER:
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"ok")
            case Failure.CLOSE_AFTER:
                self._send(Answer())
            case _:
                return

    def _close_early(self) -> None:
        self.close_connection = True
        self._send(Answer(413))
