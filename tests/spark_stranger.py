"""Whoever may connect to Spark's ports without knowing its secret: asks for the blocks that Spark keeps, as an executor would.

Spark's transport protocol, as its block managers speak it (Spark's sources: common/network-common, package ``protocol``, and
common/network-shuffle, ``OpenBlocks`` and ``StreamHandle``): frames of an 8 byte length that counts itself, a type, a body.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence

import psutil

from tests.servers.child import HOST

ANSWER_DEADLINE_S = 2.0

_CHUNK_FETCH_REQUEST, _CHUNK_FETCH_SUCCESS, _RPC_REQUEST, _RPC_RESPONSE = 0, 1, 3, 4
_OPEN_BLOCKS, _STREAM_HANDLE = 0, 3
_HANDLE = struct.Struct(">Bqi")  # type, stream, chunks


def listening_ports(pid: int) -> list[int]:
    """The TCP ports of a process and of all that it started."""
    process = psutil.Process(pid)
    ports = set()
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            ports |= {c.laddr.port for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return sorted(ports)


def read_blocks(pid: int, names: Sequence[str]) -> dict[str, bytes]:
    """Those of the blocks that a port of the process gives away."""
    return {name: block for port in listening_ports(pid) for name, block in _blocks_of(port, names)}


def _blocks_of(port: int, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """None when the port speaks another protocol, or ends the connection, or does not answer."""
    with contextlib.suppress(OSError, EOFError, struct.error), socket.create_connection((HOST, port)) as connection:
        connection.settimeout(ANSWER_DEADLINE_S)
        for name in names:
            block = _block(connection, name)
            if block is not None:
                yield name, block


def _block(connection: socket.socket, name: str) -> bytes | None:
    opening = bytes([_OPEN_BLOCKS]) + _text("app") + _text("stranger") + struct.pack(">i", 1) + _text(name)
    kind, body = _ask(connection, _RPC_REQUEST, struct.pack(">qi", 1, len(opening)) + opening)
    if kind != _RPC_RESPONSE:
        return None
    handle, stream, _ = _HANDLE.unpack_from(body, 12)  # after the request's number and the body's length
    if handle != _STREAM_HANDLE:
        return None
    kind, body = _ask(connection, _CHUNK_FETCH_REQUEST, struct.pack(">qi", stream, 0))
    return body[12:] if kind == _CHUNK_FETCH_SUCCESS else None


def _ask(connection: socket.socket, kind: int, body: bytes) -> tuple[int, bytes]:
    """The type and the body of the answer."""
    connection.sendall(struct.pack(">qB", 9 + len(body), kind) + body)
    length, answered = struct.unpack(">qB", _exactly(connection, 9))
    return answered, _exactly(connection, length - 9)


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return data
