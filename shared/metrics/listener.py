"""The endpoints of a process: /metrics, /healthz and /readyz, by HTTP, on separate threads.

They answer while the process is busy or stuck, and slow it down as little as possible: a few connections at a time,
each for some seconds, one request each. There is no authentication; the address decides which clients can connect.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from pgsluice.shared import telemetry
from pgsluice.shared.config.kinds import split_address
from pgsluice.shared.metrics.exposition import CONTENT_TYPE, Exposition
from pgsluice.shared.metrics.health import Verdict
from pgsluice.shared.metrics.vitals import Vitals
from pgsluice.shared.process.defect import place_of
from pgsluice.shared.process.listening import listen

CONNECTION_TIMEOUT_S = 3.0
MOST_CONNECTIONS = 16
END_DEADLINE_S = 2.0

_METHODS = ("GET", "HEAD")
_JSON = "application/json"

log = telemetry.logger(__name__)

Ended = Callable[[BaseException], None]


class Listener:
    """Answers from its creation on, until ``close`` or the end of the process; ``on_ended`` is called when it ends in
    another way. ``address`` is ``HOST:PORT``.

    Raises UsageError or TerminalError when nothing can listen there.
    """

    def __init__(self, address: str, vitals: Vitals, on_ended: Ended) -> None:
        self._server = _Server(listen(*split_address(address), "metrics-listen"), vitals)
        self._on_ended = on_ended
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="pgsluice-endpoints", daemon=True)
        self._thread.start()
        log.info("metrics and health are shown", url=self.url, paths="/metrics /healthz /readyz")

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        """Closes at once: a process does not live longer for its endpoints."""
        self._is_closing = True
        self._server.stop_listening()
        self._thread.join(END_DEADLINE_S)
        self._server.server_close()

    def _serve(self) -> None:
        try:
            while not self._is_closing:  # not serve_forever, which looks for its end twice a second
                self._server.handle_request()
        except Exception as error:  # noqa: BLE001  whoever is told ends the process: nobody is to look at a light that is off
            self._on_ended(error)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, vitals: Vitals) -> None:
        self.vitals = vitals
        self.exposition = Exposition(vitals)
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.address_family = listening.family
        super().__init__(listening.getsockname(), _Request, bind_and_activate=False)
        self.socket.close()  # which the standard library made, and nothing was done with
        self.socket = listening

    def stop_listening(self) -> None:
        """Stops listening, and wakes a thread that waits for a client (on Linux)."""
        with suppress(OSError):  # it is closed
            self.socket.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnect, or send nothing for too long."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    server_version = "pgsluice"
    sys_version = ""
    timeout = CONNECTION_TIMEOUT_S

    def do_GET(self) -> None:
        try:
            status, kind, body = self._answer()
        except Exception as error:
            log.exception("the requested page could not be produced", path=self.path.partition("?")[0], place=place_of(error))
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, _JSON, b'{"why":"a defect; see the log"}'
        self._send(status, kind, body)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self) -> tuple[HTTPStatus, str, bytes]:
        match self.path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE, self.server.exposition.text()
            case "/healthz":
                return _told(self.server.vitals.health())
            case "/readyz":
                return _told(self.server.vitals.readiness())
            case _:
                return HTTPStatus.NOT_FOUND, _JSON, b'{"why":"there are /metrics, /healthz and /readyz"}'

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers 405; the standard library answers 501 for a method without a function."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
            self.send_header("Allow", ", ".join(_METHODS))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._send(status, _JSON, orjson.dumps({"why": status.phrase}))

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every ten seconds is no news."""


def _told(verdict: Verdict) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.OK if verdict.is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return status, _JSON, orjson.dumps(verdict.content) + b"\n"
