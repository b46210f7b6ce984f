"""A server that accepts everybody and, when it is asked to replicate, sends what a test says, in exactly these pieces."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pgsluice.shared.config.settings import PostgresSettings

HOST = "127.0.0.1"

COPY_BOTH = struct.pack(">ciBH", b"W", 7, 0, 0)


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">i", len(content) + 4) + content


def error(sqlstate: str, text: str) -> bytes:
    return message(b"E", f"SFATAL\0VFATAL\0C{sqlstate}\0M{text}\0Fpostgres.c\0L1\0RProcessInterrupts\0\0".encode())


READY = message(b"Z", b"I")


def _row(*values: tuple[int, bytes]) -> bytes:
    """The answer to a query: OIDs of types and texts of values."""
    columns = b"".join(b"?\0" + struct.pack(">ihihih", 0, 0, oid, -1, -1, 0) for oid, _ in values)
    row = b"".join(struct.pack(">i", len(text)) + text for _, text in values)
    count = struct.pack(">h", len(values))
    return message(b"T", count + columns) + message(b"D", count + row) + message(b"C", b"SELECT 1\0") + READY


_OWN_SESSION = _row((23, b"0"), (16, b"t"), (25, b""))
"""Its process number is that of the connection, which was told none."""
_NOT_ENCRYPTED = _row((16, b"f"))


@contextmanager
def scripted_walsender(pieces: Sequence[bytes]) -> Iterator[PostgresSettings]:
    """Sends each of ``pieces`` alone, one after the other, and ends the connection then."""
    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, pieces))
        thread.start()
        try:
            yield PostgresSettings(HOST, listening.getsockname()[1], "shop", "ada", "", "disable", "", "", "", "")
        finally:
            thread.join()


def _serve(listening: socket.socket, pieces: Sequence[bytes]) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        stream.read(size - 4)
        parameters = {b"server_version": b"16.4", b"server_encoding": b"UTF8", b"client_encoding": b"UTF8"}
        settings = b"".join(message(b"S", name + b"\0" + value + b"\0") for name, value in parameters.items())
        connection.sendall(message(b"R", struct.pack(">i", 0)) + settings + READY)
        while head := stream.read(5):
            query = stream.read(struct.unpack(">i", head[1:])[0] - 4)
            if query.startswith(b"START_REPLICATION"):
                for piece in pieces:
                    connection.sendall(piece)
                return
            connection.sendall(_OWN_SESSION if query.startswith(b"SELECT pg_backend_pid()") else _NOT_ENCRYPTED)
