"""A publisher that does nothing but send finished messages to JetStream, in atomic batches as ``worker nats`` has them.

What it reaches, and what the server spends on it, is what no worker can be better than.
"""

from __future__ import annotations

import socket
import time
import uuid
from typing import BinaryIO

import orjson

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import Stream
from tests.servers import NatsServer

BATCH = 1000
LINE = (
    b'{"operation":"INSERT","schema":"public","table":"events","position":"16/B374D848:3","xid":740,'
    b'"committed_at":"2026-01-01T00:00:00.000000Z","after":{"id":123456,"account":7919,"kind":"created","amount":1234.56,'
    b'"settled":true,"happened_at":"2026-01-01T00:00:00+00:00","note":"0cc175b9c0f1b6a831c399e269772661"}}'
)
"""As one of the scenario is."""


class BarePublisher:
    """Makes the stream, of nobody else, with what a target stream is made with."""

    def __init__(self, server: NatsServer, stream: str) -> None:
        self._server = server
        self._stream = stream

    async def make_stream(self) -> None:
        about = {"name": self._stream, "subjects": [f"{self._stream}.>"], "storage": "file", "allow_atomic": True}
        about |= {"allow_rollup_hdrs": True, "allow_direct": True, "duplicate_window": 1_000_000_000}
        async with connected(self._server.settings(), "benchmark") as client:
            await client.request(f"$JS.API.STREAM.CREATE.{self._stream}", orjson.dumps(about), timeout=10)
            assert await Stream(client, self._stream, "").state() is not None

    def frames(self, count: int) -> list[tuple[bytes, bytes]]:
        """Per batch all of it but the message that commits it, and that one."""
        batches = []
        for first in range(0, count, BATCH):
            batch_id = uuid.uuid4().hex[:12].encode()
            frames = [self._frame(batch_id, first, number) for number in range(1, BATCH + 1)]
            batches.append((b"".join(frames[:-1]), frames[-1]))
        return batches

    def _frame(self, batch_id: bytes, first: int, number: int) -> bytes:
        head = b"NATS/1.0\r\nNats-Msg-Id:16/%08X:%d\r\nNats-Batch-Id:%b\r\nNats-Batch-Sequence:%d\r\n"
        head %= first, number, batch_id, number
        if number == 1:
            head += b"Nats-Expected-Last-Sequence:%d\r\n" % first
        if number == BATCH:
            head += b"Nats-Batch-Commit:1\r\n"
        head += b"\r\n"
        to = f"{self._stream}.public.events.insert".encode() + (b" inbox.1" if number == BATCH else b"")
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(head), len(head) + len(LINE), head, LINE)

    def send(self, batches: list[tuple[bytes, bytes]]) -> float:
        """How long it took until all were stored. A batch travels while the one before is not acknowledged; what commits it does
        not."""
        with socket.create_connection((self._server.host, self._server.port)) as connection, connection.makefile("rb") as answers:
            connection.sendall(b'CONNECT {"headers":true,"verbose":false}\r\nSUB inbox.> 1\r\n')
            began_at = time.monotonic()
            for number, (messages, last) in enumerate(batches):
                connection.sendall(messages)
                if number:
                    _acknowledged(connection, answers)
                connection.sendall(last)
            _acknowledged(connection, answers)
            return time.monotonic() - began_at


def _acknowledged(connection: socket.socket, answers: BinaryIO) -> None:
    """Returns at the next acknowledgement. Raises RuntimeError when it is a refusal."""
    while line := answers.readline():
        if line.startswith(b"PING"):
            connection.sendall(b"PONG\r\n")
        elif line.startswith((b"MSG", b"HMSG")):
            answer = answers.read(int(line.split()[-1]) + 2)
            if b'"error"' in answer:
                raise RuntimeError(f"JetStream refused a batch: {answer!r}")
            return
        elif line.startswith(b"-ERR"):
            raise RuntimeError(f"NATS ended the connection: {line!r}")
    raise RuntimeError("NATS closed the connection")
