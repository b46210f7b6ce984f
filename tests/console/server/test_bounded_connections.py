"""Clients hold no connection by doing nothing, or by doing little now and then; and the number of connections is limited."""

from __future__ import annotations

import contextlib
import http.client
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import trustme

from pgsluice.console.server.bounded_connection import ANSWERED_CONNECTIONS, MOST_CONNECTIONS, RECEIVING_S, SENDING_S
from tests.console.server.served import Served
from tests.servers import NatsServer
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

DRIP_S = 0.5
HEAD = b"GET /api/v1/health HTTP/1.1\r\nX-Slow: "
WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SLACK_S = 5.0


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough for as many connections as a server answers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, MOST_CONNECTIONS + 500)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answered(opened: socket.socket) -> int:
    """The status of the next answer, which is read to its end."""
    answer = http.client.HTTPResponse(opened)
    answer.begin()
    answer.read()
    return answer.status


def begun(served: Served, first: bytes) -> socket.socket:
    host, _, port = served.address.partition("//")[2].rpartition(":")
    opened = socket.create_connection((host, int(port)))
    opened.sendall(first)
    return opened


def body_head(served: Served) -> bytes:
    lines = (
        "POST /api/v1/plan HTTP/1.1",
        f"Host: {served.address.partition('//')[2]}",
        f"Authorization: Bearer {served.admin_token}",
        "Content-Type: application/json",
        "Content-Length: 100000",
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def is_cut_off(served: Served) -> bool:
    with begun(served, b"") as one_more, contextlib.suppress(TimeoutError):
        one_more.settimeout(0.5)
        try:
            return not one_more.recv(1)
        except ConnectionError:
            return True
    return False


def cut_off_after(sockets: dict[str, socket.socket]) -> dict[str, float]:
    """When each was, in seconds from now, while a byte of each comes now and then; those that never were are left out."""
    began, after = time.monotonic(), dict[str, float]()
    with selectors.DefaultSelector() as selector:
        for name, each in sockets.items():
            each.setblocking(False)
            selector.register(each, selectors.EVENT_READ, name)
        while len(after) < len(sockets) and time.monotonic() - began < RECEIVING_S + SLACK_S:
            for key, _ in selector.select(DRIP_S):
                with contextlib.suppress(ConnectionError):
                    if sockets[key.data].recv(4096):
                        continue
                after[key.data] = time.monotonic() - began
                selector.unregister(sockets[key.data])
            for name in sockets.keys() - after.keys() - {"silent", "handshake"}:
                with contextlib.suppress(ConnectionError):
                    sockets[name].send(b"x")
    return after


@pytest.fixture
def served_by_tls(nats_server: NatsServer, tmp_path: Path) -> Iterator[Served]:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.cert_chain_pems[0].write_to_path(str(cert))
    certificate.private_key_pem.write_to_path(str(key))
    with Served(nats_server.url, tmp_path, server_tls_cert=str(cert), server_tls_key=str(key)) as server:
        yield server


def test_who_sends_a_byte_now_and_then_is_cut_off_and_who_waits_for_nothing_is_not(served: Served, served_by_tls: Served) -> None:
    entered = httpx.get(served_by_tls.link(), verify=False)
    assert (entered.status_code, served_by_tls.address[:8]) == (303, "https://")
    assert set(entered.cookies) == {"__Host-pgsluice-session", "__Host-pgsluice-csrf"}
    with contextlib.ExitStack() as opened:
        firsts = {"silent": b"", "head": HEAD, "body": body_head(served), "second": WHOLE}
        sockets = {name: opened.enter_context(begun(served, first)) for name, first in firsts.items()}
        sockets["handshake"] = opened.enter_context(begun(served_by_tls, b""))
        idle = opened.enter_context(begun(served, WHOLE))
        assert [answered(sockets["second"]), answered(idle)] == [403, 403]
        after = cut_off_after(sockets)
        assert after.keys() == sockets.keys()
        assert all(RECEIVING_S - 1 < seconds < RECEIVING_S + SLACK_S for seconds in after.values()), after
        idle.sendall(WHOLE)
        assert answered(idle) == 403
    assert "defect" not in served.process.log()


def test_connections_beyond_the_bound_are_refused_until_others_end(served: Served, descriptors: None) -> None:
    """Silent ones: told so at first, and then cut off at once."""
    with contextlib.ExitStack() as opened:
        for _ in range(ANSWERED_CONNECTIONS):
            opened.enter_context(begun(served, b""))
        with served.client() as client:
            assert wait_until(lambda: client.get("/health").status_code == 503, what="a refusal")
        for _ in range(ANSWERED_CONNECTIONS, MOST_CONNECTIONS):
            opened.enter_context(begun(served, b""))
        wait_until(lambda: is_cut_off(served), what="the end of a connection")
        opened.close()
        with served.client() as client:
            wait_until(lambda: client.get("/health").status_code == 200, what="room for another connection")


@pytest.mark.long
@pytest.mark.timeout(2 * SENDING_S)
def test_who_takes_no_answers_is_cut_off(served: Served) -> None:
    request = "".join(
        f"{line}\r\n" for line in ("GET /vendor/uplot.js HTTP/1.1", *body_head(served).decode().split("\r\n")[1:3], "")
    )
    with begun(served, b"") as opened:
        port = opened.getsockname()[1]
        opened.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            opened.sendall(request.encode() * 1000)
        wait_until(lambda: is_held(served, port), what="the connection")
        wait_until(lambda: not is_held(served, port), deadline_s=SENDING_S + 2 * SLACK_S, what="the end of the connection")


def is_held(served: Served, port: int) -> bool:
    return any(each.raddr and each.raddr.port == port for each in psutil.Process(served.process.pid).net_connections())


def test_a_large_body_that_comes_at_once_is_no_slow_one(served: Served) -> None:
    with served.client() as client:
        answer: httpx.Response = client.post("/plan", json={"documents": ["#" * 500_000]})
        assert answer.status_code == 422
