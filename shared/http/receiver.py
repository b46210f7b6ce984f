"""The receiver: the parts of its URL, which addresses may be connected to, and one kept-alive connection.

A configuration must not turn the worker against what only its own network can reach (a cloud's metadata service, a
neighbour's administration port). So an address is used only when it is public, or when it lies in a network that was
allowed. It is looked up and judged for every connection, and the connection is made to the judged address itself, so a
name that changes its mind in between gains nothing.

The standard library's client is used because a lane needs no more than one blocking connection, and because it lets us
choose the address that is connected to. It takes no proxy from the environment and follows no redirect. What it lacks
is here: one deadline for a whole exchange, so that a receiver that sends a byte now and then cannot block a lane
indefinitely, and a bound on the answer's size.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pgsluice.shared.errors import Cause, OverloadError, TerminalError, TransientError, UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SPECIAL_PURPOSE = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24
    192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4
    240.0.0.0/4
    2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20
"""
"""Multicast, and every row of IANA's IPv4 and IPv6 Special-Purpose Address Registries (of the latter what lies in
_GLOBAL_UNICAST). Rows that are reachable from everywhere are anycast: the machine that answers is the nearest one,
which may be one of the worker's own network. 6to4 and Teredo tunnel to an unchecked address of version 4. What Python
itself thinks of an address depends on its patch level."""
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, _SPECIAL_PURPOSE.split()))

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Outside of it no address of version 6 is public."""

_STANDS_FOR_VERSION_4 = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""Mapped addresses (RFC 4291), and addresses that a translator makes (RFC 6052) where the network speaks version 6
only."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """``target`` is path and query. Only ``origin`` may be shown: the rest of a webhook's URL often is its secret. ``options`` is
    what the names of the options begin with that it comes from."""

    is_tls: bool
    host: str
    port: int
    target: str
    options: str = "webhook"

    @classmethod
    def parse(cls, url: str, options: str = "webhook") -> Receiver:
        """``url`` is what ``Kind.URL`` takes."""
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna" if not url.isascii() else "ascii").decode()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme == "https", host, parts.port or _DEFAULT_PORTS[parts.scheme], target, options)

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Hosts that may be connected to. Without entries, every public address is allowed. With entries, all others are
    refused, by name and by address; an address that is not public must be listed itself, because the owner of a name
    can point it to any address."""

    names: frozenset[str]
    networks: tuple[Network, ...]

    @classmethod
    def parse(cls, entries: Sequence[str], options: str = "webhook") -> AllowedHosts:
        """Entries are host names, addresses, or networks like 10.0.0.0/8. Raises UsageError for anything else."""
        names, networks = set(), []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]")))
            except ValueError as error:
                if "/" in entry or ":" in entry or "*" in entry:
                    raise UsageError(
                        f"{options}-allow-hosts holds '{entry}', which is neither a host name nor a network ({error})",
                        "write names like hooks.example.com, addresses like 10.0.0.5 and networks like 10.0.0.0/8",
                    ) from None
                names.add(entry.lower())
        return cls(frozenset(names), tuple(networks))

    def allows(self, host: str, address: Address) -> bool:
        if any(address in network for network in self.networks):
            return True
        is_listed = host in self.names or not (self.names or self.networks)
        return is_listed and _is_public(address)


def _is_public(address: Address) -> bool:
    if any(address in network for network in _STANDS_FOR_VERSION_4):
        return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def check_receiver(url: str, allow_hosts: Sequence[str], options: str = "webhook") -> None:
    """Raises UsageError or TerminalError when the receiver must not be posted to. One that cannot be looked up is not judged."""
    with contextlib.suppress(TransientError):
        allowed_addresses(Receiver.parse(url, options), AllowedHosts.parse(allow_hosts, options))


def allowed_addresses(receiver: Receiver, allowed: AllowedHosts) -> list[Address]:
    """Returns the addresses of the receiver's host now that may be connected to, at least one, in the order to try
    them.

    Raises TransientError when the name cannot be looked up, TerminalError when no address of it is allowed.
    """
    try:
        answers = socket.getaddrinfo(receiver.host, receiver.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name, such as a..b
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise TransientError(
            f"the address of {receiver.host} cannot be looked up ({reason})",
            "check the name and the name server",
            Cause.TARGET,
        ) from None
    addresses = list(dict.fromkeys(ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers))
    usable = [address for address in addresses if allowed.allows(receiver.host, address)]
    if not usable:
        raise TerminalError(
            f"the {receiver.options}'s host {receiver.host} is not allowed",  # nor what it was looked up to be
            f"when it is meant to be reached, list it in {receiver.options}-allow-hosts: its name, and its address or network "
            "unless that is public",
        )
    return usable


CONNECT_TIMEOUT_S = 10.0
ANSWER_BYTES = 64 * 1024  # of an answer that are read, to keep the connection; a longer one costs a new connection

_GONE = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors of a connection that the receiver closed while it was idle."""


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """``retry_after`` is the header of that name, "" without it. ``body`` is as much as was asked for."""

    status: int
    retry_after: str
    body: bytes = field(default=b"", repr=False)


_Sent = tuple[str, str, Mapping[str, str], bytes | None]
"""Method, target, headers and body."""


def trusted_certificates(ca_file: str, options: str = "webhook") -> ssl.SSLContext:
    """Verifies certificates and host names. ``ca_file`` holds what vouches for them; "" means what the machine trusts."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise TerminalError(f"{options}-ca: {ca_file} holds no certificate", "give a file of certificates in PEM form") from None


class ReceiverConnection:
    """A blocking connection for a single thread, except ``abort``."""

    def __init__(self, receiver: Receiver, allowed: AllowedHosts, certificates: ssl.SSLContext, timeout_s: float) -> None:
        self._receiver = receiver
        self._allowed = allowed
        self._certificates = certificates
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._is_aborted = False

    def post(self, headers: Mapping[str, str], body: bytes) -> ReceiverAnswer:
        """Returns the receiver's answer, whatever it is. Raises TransientError without an answer (OverloadError if the
        request may have arrived), TerminalError when the receiver is not the expected one or may not be connected to."""
        return self.request("POST", self._receiver.target, headers, body, ANSWER_BYTES)

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, answer_bytes: int
    ) -> ReceiverAnswer:
        """Like ``post``, by any method and to any target of the receiver, with as many bytes of the answer."""
        sent = method, target, headers, body
        with self._failures():
            if self._connection is not None:
                try:
                    return self._exchange(self._connection, sent, answer_bytes)
                except _GONE:
                    self.close()
            return self._exchange(self._connect(), sent, answer_bytes)

    def reach(self) -> None:
        """Connects, without a request. Raises as ``post`` does."""
        with self._failures():
            self._connect()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise TerminalError(
                f"the certificate of {self._receiver.origin} is not trusted ({error.verify_message})",
                f"check its URL; give the certificate that vouches for it as {self._receiver.options}-ca",
            ) from None
        except TimeoutError:
            raise self._no_answer(f"nothing within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(type(error).__name__) from None

    def close(self) -> None:
        """Closes the connection; the next request makes a new one."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """Aborts for good, from another thread: a running request fails, and so does every other."""
        self._is_aborted = True
        current = self._socket
        if current is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(current, socket.SHUT_RDWR)  # an SSLSocket's own would disturb the thread that reads

    def _no_answer(self, reason: str) -> TransientError:
        was_reached = self._connection is not None
        self.close()
        fact = f"{self._receiver.origin} gave no answer ({reason})"
        kind = OverloadError if was_reached else TransientError
        return kind(fact, "check that the receiver runs and is reached", Cause.TARGET)

    def _connect(self) -> http.client.HTTPConnection:
        receiver = self._receiver
        plain = self._connect_to_any()
        self._socket = plain
        if receiver.is_tls:
            self._socket = self._certificates.wrap_socket(plain, server_hostname=receiver.host)
        connection = http.client.HTTPConnection(receiver.host, receiver.port)
        connection.auto_open = 0
        connection.response_class = _FinalAnswer
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

    def _exchange(self, connection: http.client.HTTPConnection, sent: _Sent, answer_bytes: int) -> ReceiverAnswer:
        method, target, headers, body = sent
        if self._is_aborted:
            raise ConnectionAbortedError
        assert isinstance(connection.sock, _DeadlineSocket)
        connection.sock.ends_at = time.monotonic() + self._timeout_s
        # A receiver may answer before it has read everything, and close: then there is an answer although sending
        # failed.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.request(method, target, body, self._host_header() | dict(headers))
        with contextlib.closing(connection.getresponse()) as response:
            content = response.read(answer_bytes)
            if len(content) < answer_bytes and response.length:
                raise http.client.IncompleteRead(content)
            if not response.isclosed() or response.will_close:
                self.close()
            return ReceiverAnswer(response.status, response.getheader("Retry-After", ""), content)

    def _host_header(self) -> dict[str, str]:
        default_port = 443 if self._receiver.is_tls else 80
        origin = self._receiver.origin.partition("//")[2]
        return {"Host": origin.removesuffix(f":{default_port}")}


class _FinalAnswer(http.client.HTTPResponse):
    """Skips interim answers (RFC 9110 15.2); the standard library knows only 100. 101 is not interim: it ends HTTP."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        is_interim = 100 <= status < 200 and status != http.HTTPStatus.SWITCHING_PROTOCOLS
        return version, http.HTTPStatus.CONTINUE if is_interim else status, reason


class _DeadlineSocket:
    """The part of a socket that http.client needs. Everything on it ends with TimeoutError at ``ends_at``, on the
    monotonic clock.

    Like a socket's, ``close`` takes effect when the result of ``makefile`` is closed too.
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
