"""One exchange of a request and an answer, in each form that RFC 9110 and RFC 9112 let a server or a proxy give it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence

import pytest

from pgsluice.shared.errors import OverloadError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, ReceiverAnswer, ReceiverConnection
from tests.servers.asyncio_server import AsyncioServer
from tests.servers.child import HOST

HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\nLink: </more.css>; rel=preload\r\n\r\n"
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class ScriptedServer(AsyncioServer):
    """Answers each request with the next of ``answers``, the last one again and again. ``connections`` counts them."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        super().__init__()
        self._answers = list(answers)
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(length)
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            writer.write(answer)
            await writer.drain()
            if b"Connection: close" in answer or b"HTTP/1.0" in answer:
                break
        writer.close()


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    with ScriptedServer(request.param) as server:
        yield server


def connection_to(server: ScriptedServer) -> ReceiverConnection:
    receiver = Receiver.parse(f"http://{HOST}:{server.port}/hook", "webhook")
    return ReceiverConnection(receiver, AllowedHosts.parse((HOST,)), ssl.create_default_context(), 30.0)


@pytest.mark.parametrize(
    "answering",
    [
        [OK],
        [CONTINUE + OK],
        [HINTS + OK],
        [PROCESSING + OK],
        [PROCESSING + HINTS + CONTINUE + HINTS + OK],
        [PROCESSING * 500 + OK],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;note=x\r\nk\r\n0\r\nX-Trailer: 1\r\n\r\n"],
        [HINTS + b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok"],
    ],
    indirect=True,
)
def test_the_answer_is_the_final_one_and_the_connection_is_used_again(answering: ScriptedServer) -> None:
    connection = connection_to(answering)
    assert [connection.post({}, b"x" * n) for n in (1, 2, 3)] == [ReceiverAnswer(200, "", b"ok")] * 3
    connection.close()
    assert answering.connections == 1


@pytest.mark.parametrize(
    "answering",
    [
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\n\r\nok"],
        [HINTS + b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"],
    ],
    indirect=True,
)
def test_a_connection_that_ends_with_its_answer_is_made_anew(answering: ScriptedServer) -> None:
    connection = connection_to(answering)
    assert [connection.post({}, b"x") for _ in range(3)] == [ReceiverAnswer(200, "", b"ok")] * 3
    connection.close()
    assert answering.connections == 3


@pytest.mark.parametrize(
    ("answering", "answer"),
    [
        ([HINTS + b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"], ReceiverAnswer(503, "7", b"")),
        ([PROCESSING + b"HTTP/1.1 204 No Content\r\n\r\n"], ReceiverAnswer(204, "", b"")),
        ([b"HTTP/1.1 421 Misdirected Request\r\nContent-Length: 0\r\n\r\n"], ReceiverAnswer(421, "", b"")),
        ([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\n\r\n"], ReceiverAnswer(101, "", b"")),
        ([b"HTTP/1.1 308 Permanent Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"], ReceiverAnswer(308, "", b"")),
    ],
    indirect=["answering"],
)
def test_what_is_no_success_is_the_answer_too(answering: ScriptedServer, answer: ReceiverAnswer) -> None:
    connection = connection_to(answering)
    assert connection.post({}, b"x") == answer
    connection.close()


@pytest.mark.parametrize(
    "answering",
    [
        [HINTS + b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nok"],
        [HINTS[:20] + b"\r\nConnection: close\r\n\r\n"],
        [b"HTTP/1.1 103 Early Hints\r\n" + b"Link: x\r\n" * 200 + b"Connection: close\r\n\r\n" + OK],
        [b"HTTP/1.1 102 Processing\r\nX: " + b"x" * 70_000 + b"\r\nConnection: close\r\n\r\n" + OK],
        [b"nonsense\r\nConnection: close\r\n\r\n"],
    ],
    indirect=True,
)
def test_what_is_no_whole_answer_is_none(answering: ScriptedServer) -> None:
    connection = connection_to(answering)
    with pytest.raises(OverloadError, match="gave no answer"):
        connection.post({}, b"x")
    connection.close()
