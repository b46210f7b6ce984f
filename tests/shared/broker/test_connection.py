"""What is said, and when, while NATS or the source does not answer, or is something else."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from pgsluice.shared.broker.connection import _Client, _Transport, connect, connected, disconnect
from pgsluice.shared.config.settings import NatsSettings
from tests.configuration import REQUIRED
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.child import HOST
from tests.servers.http_server import HttpServer
from tests.waiting import LONGEST_S, wait_on_loop, wait_until, wait_until_async

FIRST_LINE_S = 2.0
"""After the start of ``connect``: what comes before it is the machine's and Python's."""
LONGEST_LINE = 400

REPLICATOR = {key: value for key, value in REQUIRED.items() if not key.startswith("target-")}


header_blocks = st.one_of(
    st.binary(max_size=60),
    st.lists(st.tuples(st.text("aZ-: \té\x1c\xa0", max_size=6), st.text("v é\t:", max_size=6)), max_size=4).map(
        lambda pairs: b"".join(f"{name}:{value}\r\n".encode() for name, value in pairs)
    ),
)


@given(header_blocks)
@example(b"Nats-Sequence: 7\r\nPgsluice-First: 0/64:1\r\n\r\n")
@example(b"bad name: 1\r\nno colon\r\n : 2\r\nValue:\xff\xfe\r\n")
def test_headers_are_read_as_the_client_reads_them_itself(raw: bytes) -> None:
    """It would be slower, and it must still ask for them in this way: then a new version is noticed here."""
    assert _Client._parse_header_lines(raw) == Client._parse_header_lines(raw)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where connections are made and nobody ever says anything, as behind a paused server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


async def test_a_connection_that_is_given_up_at_whatever_moment_is_given_up(silent: int) -> None:
    """Before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that comes together with what it waits for, and nats-py
    goes on to connect."""
    settings = NatsServer(port=silent).settings()
    for turns in range(1, 80):
        connecting = asyncio.ensure_future(connect(settings, "test", 60.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        ended, _ = await asyncio.wait({connecting}, timeout=20)
        assert ended, f"cancelled after {turns} turns of the loop"


@pytest.mark.parametrize(
    "answers", [None, b"", b"INFO {}\r\n", b"-ERR 'no'\r\n"], ids=["nobody", "silence", "no INFO", "an error"]
)
async def test_a_connection_that_is_closed_while_it_reconnects_leaves_nothing_that_goes_on(
    answers: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does at that moment, and whoever answers there: see above."""
    trying = asyncio.Event()
    transports: list[_Transport] = []

    async def watched(self: _Transport, *given: Any, **more: Any) -> None:
        transports.append(self)
        trying.set()
        await connect_transport(self, *given, **more)

    with NatsServer() as server:
        clients = [await connect(server.settings(), "test") for _ in range(20)]
        server.kill()
        connect_transport = _Transport.connect
        monkeypatch.setattr(_Transport, "connect", watched)
        async with contextlib.AsyncExitStack() as listening:
            if answers is not None:
                await listening.enter_async_context(await asyncio.start_server(answering(answers), HOST, server.port))
            turns, closing = 0, dict[Client, asyncio.Future[None]]()
            while len(closing) < len(clients):
                transports.clear()
                trying.clear()
                await asyncio.wait_for(trying.wait(), LONGEST_S)
                for _ in range(turns):
                    await asyncio.sleep(0)
                for client in [each for each in clients if each._transport in transports and each not in closing]:
                    closing[client] = asyncio.ensure_future(disconnect(client))
                    await asyncio.sleep(0)
                    turns += 1
            await asyncio.gather(*closing.values())
    left = asyncio.all_tasks() - {asyncio.current_task()}
    await wait_on_loop(lambda: all(task.done() for task in left), what="the end of what was closed", deadline_s=20)


def answering(line: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line)
        await reader.read()
        writer.close()

    return answer


def first_line_s(process: PgsluiceProcess, text: str) -> float:
    """How long after its first own line of Python the process wrote ``text``."""
    started = Path(f"/proc/{process.pid}")
    assert started.exists()
    begun = time.monotonic()
    process.wait_for_log(text)
    return time.monotonic() - begun


@pytest.mark.parametrize("role", [["replicator"], ["worker", "stdout"]], ids=" ".join)
def test_a_server_that_does_not_answer_is_named_soon_and_given_up_after_the_limit(role: list[str], silent: int) -> None:
    keys = REPLICATOR | {"nats-url": f"nats://user:hunter2@127.0.0.1:{silent}", "connect-timeout": "2s"}
    with PgsluiceProcess(*role, config=keys) as process:
        process.wait_for_log(f"connecting to NATS  servers=127.0.0.1:{silent}")
        assert process.wait() == 75
        assert "check nats-url and that the server runs" in process.log()
        assert "hunter2" not in process.log()


def test_the_first_line_comes_within_two_seconds_of_the_first_attempt(silent: int) -> None:
    keys = REPLICATOR | {"nats-url": f"nats://127.0.0.1:{silent}", "connect-timeout": "5s"}
    with PgsluiceProcess("replicator", config=keys) as process, socket.create_connection(("127.0.0.1", silent)):
        wait_until(lambda: connections(process.pid), what="the first attempt")
        assert first_line_s(process, "connecting to NATS") < FIRST_LINE_S


def connections(pid: int) -> bool:
    """Whether the process has a socket."""
    return any(path.is_symlink() and str(path.readlink()).startswith("socket:") for path in Path(f"/proc/{pid}/fd").iterdir())


def test_nobody_at_nats_is_told_with_the_cause_in_short_lines_that_do_not_crowd() -> None:
    keys = REPLICATOR | {"nats-url": "nats://127.0.0.1:1", "host": "localhost", "connect-timeout": "3s"}
    with PgsluiceProcess("replicator", config=keys) as process:
        assert process.wait() == 75
        lines = process.log().splitlines()
    assert "Connect" in lines[0] or "refused" in lines[0]
    assert len(lines) <= 4, lines
    assert max(map(len, lines)) < LONGEST_LINE


def test_a_source_that_does_not_answer_is_named_soon_and_told_in_short_lines(silent: int, nats_server: NatsServer) -> None:
    keys = REPLICATOR | {"nats-url": nats_server.url, "host": "127.0.0.1", "port": str(silent), "connect-timeout": "3s"}
    with PgsluiceProcess("replicator", config=keys) as process:
        process.wait_for_log(f"connecting to the source  host=127.0.0.1 port={silent}")
        assert process.wait() == 75


def test_a_source_where_nobody_listens_is_told_in_short_lines_that_do_not_crowd(nats_server: NatsServer) -> None:
    keys = REPLICATOR | {"nats-url": nats_server.url, "host": "localhost", "port": "1", "connect-timeout": "6s"}
    with PgsluiceProcess("replicator", config=keys) as process:
        assert process.wait() == 75
        lines = [line for line in process.log().splitlines() if "trying again" in line]
    assert 1 <= len(lines) <= 3, lines
    assert max(map(len, lines)) < LONGEST_LINE


def test_postgres_where_nats_belongs_is_named(source_database: Database) -> None:
    url = f"nats://{source_database.settings.host}:{source_database.settings.port}"
    with PgsluiceProcess("status", config={"group": "g", "nats-url": url}) as process:
        assert process.wait() == 2
        assert re.search(r"127\.0\.0\.1:\d+ does not speak NATS, but is a PostgreSQL server: correct nats-url", process.log())


def test_a_web_server_where_nats_belongs_is_named() -> None:
    with HttpServer() as server:
        url = f"nats://127.0.0.1:{server.port}"
        process = PgsluiceProcess("worker", "stdout", config={"group": "g", "nats-url": url}).start()
        assert process.wait() == 2
        assert "does not speak NATS, but is a web server: correct nats-url" in process.log()
        process.close()


def test_a_database_that_is_not_there_is_named_and_not_its_user(source_database: Database, nats_server: NatsServer) -> None:
    keys = (
        REPLICATOR
        | {"nats-url": nats_server.url}
        | {key: getattr(source_database.settings, key) for key in ("host", "port", "user")}
    )
    with PgsluiceProcess("replicator", config=keys | {"dbname": "absent"}) as process:
        assert process.wait() == 2
        assert re.search(r"refuses user .* for database 'absent' .*does not exist\): check dbname", process.log())


async def publish_after_a_lost_connection(settings: NatsSettings, group: str) -> list[int]:
    """The sequences of messages that were published at once after the connection was reset."""
    async with connected(settings, "test") as client:
        stream = client.jetstream()
        await stream.add_stream(name=group, subjects=[f"{group}.>"])
        lost = client._transport
        assert isinstance(lost, TcpTransport)
        assert lost._io_writer is not None
        lost._io_writer.transport.abort()
        for _ in range(3):  # nobody has told the client yet, so it writes
            await client.publish(f"{group}.lost", b"x")
            await asyncio.sleep(0)
        await wait_until_async(lambda: is_answered(client), what="a new connection")
        return [(await stream.publish(f"{group}.kept", b"x")).seq for _ in range(2)]


async def is_answered(client: Client) -> bool:
    try:
        await client.flush(timeout=1)
    except (nats.errors.Error, OSError):
        return False
    return True


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_whoever_publishes_does_not_see_that_the_connection_was_lost(
    nats_server: NatsServer, group: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        first, second = runner.run(publish_after_a_lost_connection(nats_server.settings(), group))
    assert second == first + 1
