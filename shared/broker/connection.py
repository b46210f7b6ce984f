"""A connection to NATS: established patiently, refused with an explanation, and then kept automatically.

The explanation names the server at an address where no NATS server sent a greeting. A NATS server speaks first (``INFO
{…}``). PostgreSQL and web servers wait for their clients, so a URL that names one of them by mistake looks like a
server that hangs; each is detected in its own protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import ParseResult, urlsplit

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from pgsluice.shared import telemetry
from pgsluice.shared.broker.stream_error import denied_by, is_passing
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError, UsageError

PATIENCE_S = 2.0
NATS_PORT = 4222

_POSTGRES_SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"  # answered with one byte, before any authentication
_HTTP_REQUEST = b"HEAD / HTTP/1.0\r\n\r\n"


async def other_server(url: str) -> str:
    """Returns what listens at ``url`` in place of NATS; "" if unknown, or if nothing does."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if parts.hostname is None or parts.scheme.startswith("ws"):
        return ""
    host, port = parts.hostname, parts.port or NATS_PORT
    if await _answer(host, port, _POSTGRES_SSL_REQUEST) in (b"S", b"N"):
        return "a PostgreSQL server"
    return "a web server" if (await _answer(host, port, _HTTP_REQUEST)).startswith(b"HTTP/") else ""


async def _answer(host: str, port: int, request: bytes) -> bytes:
    """Returns the first bytes of the answer; empty without one."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                return await reader.read(16)
            finally:
                writer.close()
    return b""


MINIMUM_SERVER_VERSION = (2, 11)
MINIMUM_PAYLOAD_BYTES = 64 * 1024
"""A message holds some KiB of headers (``replicator.publisher``), and small ones cost more than what is in them."""
CONNECT_DEADLINE_S = 10.0
SILENCE_S = 1.0  # of a first connection; then the log reports what it waits for
WAIT_LOG_INTERVAL_S = 10.0
MOST_FAILURES = 20  # of the first connect, kept to report what failed
DISCONNECT_DEADLINE_S = 3.0
CANCEL_INTERVAL_S = 0.1
RECONNECT_PAUSE_S = 0.25  # a restarted server is found within a quarter of a second
PING_INTERVAL_S = 10  # two unanswered pings and the connection counts as broken
REQUEST_TIMEOUT_S = 5.0
DENIAL_COUNTS_S = 2 * REQUEST_TIMEOUT_S
"""The time after which a server's refusal is the reason for a request without an answer."""

log = telemetry.logger(__name__)


class _NoTlsError(ConnectionError):
    """TLS is required, and a server does not offer it. An OSError, after which nats-py tries the next server."""


class _Transport(TcpTransport):
    """Does with a connection that is lost what asyncio's own loop does: nothing when it is written to, and ConnectionResetError
    when it is drained, upon which nats-py makes a new one. uvloop raises RuntimeError when it is written to; that ends nats-py's
    flusher for good, and then every publisher gets it.

    ``needs_tls``: nothing is written in the clear. nats-py speaks TLS where the server's first line asks for it, and that line
    is anybody's on the way."""

    def __init__(self, *, needs_tls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._needs_tls = needs_tls

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        if self._io_writer is not None:
            self._io_writer.close()  # nats-py leaves the one of an attempt to reconnect that failed open
        await super().connect(uri, buffer_size, connect_timeout)

    def write(self, payload: bytes) -> None:
        self.writelines([payload])

    def writelines(self, payload: Sequence[bytes]) -> None:
        if self._io_writer is None or self._io_writer.is_closing():
            return
        if self._needs_tls and self._io_writer.get_extra_info("ssl_object") is None:
            self._io_writer.close()
            raise _NoTlsError("the server does not offer TLS")
        self._io_writer.writelines(payload)

    async def drain(self) -> None:
        if self._io_writer is None or self._io_writer.is_closing():
            raise ConnectionResetError("the connection to NATS is lost")
        await self._io_writer.drain()

    def __bool__(self) -> bool:
        """Always true, or nats-py would put its own in this one's place before it connects."""
        return True


class _Client(Client):
    """A client whose parser of headers takes a tenth of the time; nats-py's took half of the time of reading a small
    message."""

    def __init__(self, settings: NatsSettings) -> None:
        super().__init__()
        self.creates_streams = settings.creates_streams
        self._needs_tls, self._is_tls_first = settings.needs_tls, settings.tls_first
        self._transport = _Transport(needs_tls=settings.needs_tls)
        self._is_given_up = False
        self.denied = ""
        """The last permission that the server denied, in the form of ``denied_by``."""
        self.denied_at = -math.inf

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Ignores data that arrives before TLS: anyone on the network path may have written it. Servers that are named
        there are not used; the real server names them again after CONNECT. TLS is used where a server leaves it to its
        clients (``allow_non_tls``)."""
        if initial_connection and self._needs_tls and not self._is_tls_first:
            info.pop("connect_urls", None)
            info["tls_required"] = info.get("tls_required") or info.get("tls_available", False)
        await super()._process_info(info, initial_connection)

    async def _connect_to_server(self, *given: Any) -> None:
        """Ends an attempt that continues after ``close``, or in parallel to its replacement: its cancellation was
        swallowed (see ``_cancel``), and the connection would claim to be reconnecting instead of closed."""
        is_superseded = self._reconnection_task is not None and asyncio.current_task() is not self._reconnection_task
        if self._is_given_up or is_superseded:
            raise asyncio.CancelledError
        await super()._connect_to_server(*given)
        if self._is_given_up:
            self._transport.close()  # made after ``close`` closed the one before
            raise asyncio.CancelledError

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._is_given_up = self._is_given_up or status == Client.CLOSED
        await super()._close(status, do_cbs)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        headers = {}
        for line in raw.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            if colon and name.isascii():
                key = name.strip().decode("ascii")
                if not key or key.split() == [key]:  # no space inside
                    headers[key] = value.strip().decode("utf-8", "replace")
        return headers


class _Complaints:
    """The errors of one connection. Once it is established, no caller waits for it: then the log reports why a server
    refuses it."""

    def __init__(self, client: _Client, settings: NatsSettings, told: Callable[[Exception], None]) -> None:
        self._client = client
        self._settings = settings
        self._told = told
        self._logged_at = -WAIT_LOG_INTERVAL_S
        self.newest: list[Exception] = []
        self.refused = asyncio.Event()
        self.is_connected = False

    async def take(self, error: Exception) -> None:
        self.newest.append(error)
        del self.newest[:-MOST_FAILURES]
        self._told(error)
        if denied := denied_by(error):
            self._client.denied, self._client.denied_at = denied, time.monotonic()
        if not _is_refusal(error):
            return
        self.refused.set()
        if self.is_connected and time.monotonic() - self._logged_at >= WAIT_LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            if denied:
                log.warning("NATS denies a subject that 'pgsluice nats permissions' lists", denied=denied)
                return
            log.warning("NATS refuses the connection", servers=_host_list(self._settings), reason=_reason(error))


async def connect(
    settings: NatsSettings,
    name: str,
    deadline_s: float = CONNECT_DEADLINE_S,
    told: Callable[[Exception], None] = lambda error: None,
) -> Client:
    """Returns a connection that, once established, reconnects automatically and indefinitely. What it waits for is in
    the log after SILENCE_S. ``told`` is called for what the server complains about, also later.

    Raises TransientError when no server answers within ``deadline_s``, TerminalError when the server refuses the
    credentials, is older than 2.11, has JetStream off or takes only tiny messages, UsageError when TLS files or
    credentials cannot be read, or when it is another kind of server.
    """
    client = _Client(settings)
    complaints = _Complaints(client, settings, told)
    options = _connect_options(settings, name) | {"error_cb": complaints.take}
    connecting = asyncio.ensure_future(client.connect(**options))
    waiting = asyncio.ensure_future(complaints.refused.wait())
    try:
        await _wait_for_first([connecting, waiting], settings, complaints.newest, deadline_s)
    finally:
        waiting.cancel()
        if not connecting.done():
            await _cancel(connecting)
            await disconnect(client)
    if connecting.cancelled():
        raise _connect_error(settings, complaints.newest)
    try:
        connecting.result()
    except (OSError, ssl.SSLError, nats.errors.Error, ValueError) as error:
        raise _connect_error(settings, [error]) from None
    try:
        await _check_server(client, deadline_s)
    except PgsluiceError:
        await disconnect(client)
        raise
    complaints.is_connected = True
    return client


async def _cancel(connecting: asyncio.Future[None]) -> None:
    """Cancels until the attempt has ended: before Python 3.12 ``asyncio.wait_for``, by which nats-py connects, swallows a
    cancellation that arrives together with what it waits for."""
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=CANCEL_INTERVAL_S)


@contextlib.asynccontextmanager
async def connected(settings: NatsSettings, name: str) -> AsyncIterator[Client]:
    """Yields a connection (``connect``) for the time of a block."""
    client = await connect(settings, name, CONNECT_DEADLINE_S)
    try:
        yield client
    finally:
        await disconnect(client)


async def _wait_for_first(
    tasks: Sequence[asyncio.Future[Any]], settings: NatsSettings, failures: Sequence[Exception], deadline_s: float
) -> None:
    """Returns when one of ``tasks`` is done, or after ``deadline_s``; logs meanwhile what it waits for."""
    end, patience_s = time.monotonic() + deadline_s, SILENCE_S
    while (left_s := end - time.monotonic()) > 0:
        ended, _ = await asyncio.wait(tasks, timeout=min(patience_s, left_s), return_when=asyncio.FIRST_COMPLETED)
        if ended:
            return
        if left_s <= patience_s:
            break
        log.info("connecting to NATS", servers=_host_list(settings), reason=_reason(failures[-1] if failures else None))
        if patience_s == SILENCE_S:
            await _check_greeting(settings, failures)
        patience_s = WAIT_LOG_INTERVAL_S


async def _check_greeting(settings: NatsSettings, failures: Sequence[Exception]) -> None:
    """Raises UsageError when another kind of server was named. Asks none that refused to be connected to."""
    if any(isinstance(failure, OSError) and not isinstance(failure, TimeoutError) for failure in failures):
        return
    for url in settings.url.split(","):
        if kind := await other_server(url.strip()):
            raise UsageError(
                f"{_without_identity(url)} does not speak NATS, but is {kind}",
                "correct nats-url, for example nats://localhost:4222",
            )


def creates_streams(client: Client) -> bool:
    """Returns whether nats-create-streams lets the holder of the connection create and change streams."""
    return not isinstance(client, _Client) or client.creates_streams


def unanswered(client: Client, asked: str, reason: str) -> TransientError:
    """Returns the error of a request without an answer. ``asked`` is the stream or the bucket that it was for, ``reason`` how its
    absence was noticed. If the server denied something since the request, the error names the right."""
    if isinstance(client, _Client) and client.denied and time.monotonic() - client.denied_at <= DENIAL_COUNTS_S:
        fact = f"{asked} cannot be used: the NATS user may not {client.denied}"
        return TransientError(fact, "give it the permissions that 'pgsluice nats permissions' prints", Cause.NATS)
    return TransientError(f"{asked} does not answer ({reason})", "check that NATS runs and has a leader", Cause.NATS)


async def send_framed(client: Client, frames: bytes) -> None:
    """Publishes messages that are in the protocol's form already, a thousand for the price of one. Raises as ``publish``."""
    if not client.is_connected:
        raise nats.errors.ConnectionReconnectingError if client.is_reconnecting else nats.errors.ConnectionClosedError
    await client._send_command(frames)
    await client._flush_pending()


async def disconnect(client: Client) -> None:
    """Closes the connection, whether or not the server is reachable. Await answers before."""
    with contextlib.suppress(RuntimeError, OSError, TimeoutError):  # a dead transport refuses what the client still had to write
        await asyncio.wait_for(client.close(), DISCONNECT_DEADLINE_S)
    for task in (client._reconnection_task, client._reading_task, client._ping_interval_task, client._flusher_task):
        if task is not None and task is not asyncio.current_task():
            await _cancel(task)  # an attempt to reconnect that outlived ``close`` may have begun the others


def _connect_options(settings: NatsSettings, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": [url.strip() for url in settings.url.split(",")],
        "name": name,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": RECONNECT_PAUSE_S,
        "ping_interval": PING_INTERVAL_S,
        "pending_size": 64 * 1024 * 1024,
        "inbox_prefix": settings.inbox_prefix,
    }
    if settings.user:
        options |= {"user": settings.user, "password": settings.password}
    if settings.token:
        options["token"] = settings.token
    if settings.credentials_file:
        options["user_credentials"] = settings.credentials_file
    if settings.tls_ca or settings.tls_cert:
        options["tls"] = _tls_context(settings)
    if settings.tls_first:
        options["tls_handshake_first"] = True
    return options


def _tls_context(settings: NatsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the NATS TLS files cannot be used ({error})", "check nats-tls-ca, nats-tls-cert and nats-tls-key"
        ) from None
    return context


def _host_list(settings: NatsSettings) -> str:
    return ", ".join(map(_without_identity, settings.url.split(",")))


def _without_identity(url: str) -> str:
    """Returns the server without any user, password or token in its URL."""
    return url.strip().rpartition("@")[2].rpartition("//")[2]


def _reason(error: Exception | None) -> str:
    """Returns a short text for ``error``."""
    if error is None or isinstance(error, TimeoutError | nats.errors.TimeoutError):
        return "no answer"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return textwrap.shorten(text.removeprefix("nats: "), 120, placeholder=" …") or type(error).__name__


def _is_refusal(error: Exception) -> bool:
    """Returns whether the server refuses this client, or its certificate is not trusted: trying again gives the same
    answer."""
    text = str(error).lower()
    return isinstance(error, ssl.SSLError | _NoTlsError) or any(
        word in text for word in ("authorization", "authentication", "permissions")
    )


def _connect_error(settings: NatsSettings, failures: Sequence[Exception]) -> PgsluiceError:
    """Prefers a refusal to other failures: connections that the server closes after it fail in other ways."""
    where = _host_list(settings)
    error = next(filter(_is_refusal, failures), failures[-1] if failures else None)
    text = str(error).lower() if error else ""
    if isinstance(error, _NoTlsError):
        return TerminalError(
            f"NATS at {where} does not offer TLS, and nats-url or a nats-tls option requires it",
            "switch TLS on at the server, or connect without it: nats:// and no nats-tls option",
        )
    if error is not None and _is_refusal(error) and not isinstance(error, ssl.SSLError):
        return TerminalError(
            f"NATS at {where} refuses the credentials", "check nats-user, nats-password, nats-token or nats-credentials"
        )
    if isinstance(error, FileNotFoundError | PermissionError):
        return UsageError(f"the NATS credentials cannot be read ({error})", "check nats-credentials")
    if isinstance(error, ssl.SSLError) or "tls" in text or "certificate" in text:
        remedy = "check nats-tls-ca, nats-tls-cert and nats-tls-key, and whether the server has handshake_first (nats-tls-first)"
        return TerminalError(f"TLS with NATS at {where} failed ({error})", remedy)
    remedy = "check nats-url and that the server runs, for example nats://127.0.0.1:4222"
    if settings.needs_tls:
        remedy += f"; nats-tls-first is {str(settings.tls_first).lower()}, as handshake_first of the server has to be"
    return TransientError(f"NATS at {where} does not answer ({_reason(error)})", remedy, Cause.NATS)


async def _check_server(client: Client, deadline_s: float) -> None:
    version = client.connected_server_version
    if (version.major, version.minor) < MINIMUM_SERVER_VERSION:
        raise TerminalError(
            f"NATS server {version.major}.{version.minor}.{version.patch} is too old",
            "batched direct get needs NATS server 2.11 or later; upgrade it",
        )
    if client.max_payload < MINIMUM_PAYLOAD_BYTES:
        raise TerminalError(
            f"the NATS server takes messages of {client.max_payload} bytes at most (max_payload)",
            f"set max_payload to {MINIMUM_PAYLOAD_BYTES} or more in its configuration; its default is 1MB",
        )
    end = time.monotonic() + deadline_s
    while await _lacks_leader(client):
        if time.monotonic() > end:
            raise _no_answer(client)
        await asyncio.sleep(RECONNECT_PAUSE_S)


def _no_answer(client: Client) -> TransientError:
    """A server without JetStream passes requests on to those of its cluster, or of its hub, that have it."""
    if client._server_info.get("jetstream"):
        return unanswered(client, "JetStream", "TimeoutError")
    return TransientError(
        "JetStream does not answer, and the connected NATS server has it off",
        "start nats-server with -js and a store directory, or check those of its cluster that have JetStream",
        Cause.NATS,
    )


async def _lacks_leader(client: Client) -> bool:
    """Raises TerminalError when there is no JetStream at all."""
    try:
        await client.jetstream(timeout=REQUEST_TIMEOUT_S).account_info()
        return False
    except (nats.errors.Error, OSError) as error:
        if is_passing(error) and not isinstance(error, nats.errors.NoRespondersError):
            return True
        raise TerminalError(
            "the NATS server has no JetStream for this account",
            "start nats-server with -js and a store directory, or enable JetStream for the account",
        ) from None
