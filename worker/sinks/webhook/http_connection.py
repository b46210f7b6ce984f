"""One kept-alive HTTP connection to the receiver, and one request after the other on it.

The standard library's client is used because a lane needs no more than one blocking connection, and because it lets us choose the
address that is connected to. It takes no proxy from the environment and follows no redirect. What it lacks is here: one
deadline for a whole exchange, so that a receiver that sends a byte now and then cannot hold a lane for ever, and a bound on the
answer's size.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.worker.sinks.webhook.receiver import AllowedHosts, Receiver, allowed_addresses

CONNECT_TIMEOUT_S = 10.0
ANSWER_BYTES = 64 * 1024  # of an answer that are read, to keep the connection; a longer one costs a new connection

_GONE = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""How a connection looks that the receiver closed while it was idle."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``retry_after`` is the header of that name, "" when there is none."""

    status: int
    retry_after: str


def trusted_certificates(ca_file: str) -> ssl.SSLContext:
    """Verifies certificates and host names. ``ca_file`` holds what vouches for them; "" means what the machine trusts."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise TerminalError(f"webhook-ca: {ca_file} holds no certificate", "give a file of certificates in PEM form") from None


class ReceiverConnection:
    """Blocking; for one thread, but for ``abort``."""

    def __init__(self, receiver: Receiver, allowed: AllowedHosts, certificates: ssl.SSLContext, timeout_s: float) -> None:
        self._receiver = receiver
        self._allowed = allowed
        self._certificates = certificates
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._is_aborted = False

    def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """The receiver's answer, whatever it is. Raises TransientError when there is none (the request may have arrived all the
        same), TerminalError when the receiver is not the one it should be or may not be reached."""
        try:
            if self._connection is not None:
                try:
                    return self._exchange(self._connection, headers, body)
                except _GONE:
                    self.close()
            return self._exchange(self._connect(), headers, body)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise TerminalError(
                f"the certificate of {self._receiver.origin} is not trusted ({error.verify_message})",
                "check webhook-url; give the certificate that vouches for it as webhook-ca",
            ) from None
        except TimeoutError:
            self.close()
            raise self._no_answer(f"nothing within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._no_answer(type(error).__name__) from None

    def close(self) -> None:
        """The next request makes a new connection."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """From another thread and for good: a request that is under way fails, and so does every other."""
        self._is_aborted = True
        current = self._socket
        if current is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(current, socket.SHUT_RDWR)  # an SSLSocket's own would disturb the thread that reads

    def _no_answer(self, reason: str) -> TransientError:
        return TransientError(f"{self._receiver.origin} gave no answer ({reason})", "check that the receiver runs and is reached")

    def _connect(self) -> http.client.HTTPConnection:
        receiver = self._receiver
        plain = self._connect_to_any()
        self._socket = plain
        if receiver.is_tls:
            self._socket = self._certificates.wrap_socket(plain, server_hostname=receiver.host)
        connection = http.client.HTTPConnection(receiver.host, receiver.port)
        connection.auto_open = 0
        connection.sock = _DeadlineSocket(self._socket)
        self._connection = connection
        return connection

    def _connect_to_any(self) -> socket.socket:
        addresses = allowed_addresses(self._receiver, self._allowed)
        for remaining, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            try:
                connected = socket.create_connection((str(address), self._receiver.port), CONNECT_TIMEOUT_S)
            except OSError:
                if not remaining:
                    raise
            else:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connected
        raise AssertionError("there is at least one address")

    def _exchange(self, connection: http.client.HTTPConnection, headers: Mapping[str, str], body: bytes) -> Answer:
        if self._is_aborted:
            raise ConnectionAbortedError
        assert isinstance(connection.sock, _DeadlineSocket)
        connection.sock.ends_at = time.monotonic() + self._timeout_s
        # A receiver may answer before it has read everything, and close: then the answer is there although sending failed.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.request("POST", self._receiver.target, body, self._host_header() | dict(headers))
        with contextlib.closing(connection.getresponse()) as response:
            content = response.read(ANSWER_BYTES)
            if len(content) < ANSWER_BYTES and response.length:
                raise http.client.IncompleteRead(content)
            if not response.isclosed() or response.will_close:
                self.close()
            return Answer(response.status, response.getheader("Retry-After", ""))

    def _host_header(self) -> dict[str, str]:
        default_port = 443 if self._receiver.is_tls else 80
        origin = self._receiver.origin.partition("//")[2]
        return {"Host": origin.removesuffix(f":{default_port}")}


class _DeadlineSocket:
    """What http.client needs of a socket. Everything on it ends with TimeoutError at ``ends_at``, on the monotonic clock.

    As with a socket, ``close`` takes effect when what ``makefile`` returned is closed too.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._users = 1
        self.ends_at = 0.0

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._wait_no_longer()
            rest = rest[self._socket.send(rest) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        self._users += 1
        return io.BufferedReader(_Incoming(self))

    def recv_into(self, buffer: memoryview) -> int:
        self._wait_no_longer()
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._users -= 1
        if not self._users:
            self._socket.close()

    def _wait_no_longer(self) -> None:
        remaining = self.ends_at - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)


class _Incoming(io.RawIOBase):
    def __init__(self, source: _DeadlineSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._source.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.close()
