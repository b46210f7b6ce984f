"""Checks of servers that do not answer, however many are asked for."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx

from pgsluice.shared.process.listening import listen
from tests.console.server.served import Served
from tests.servers import NatsServer

CHECKS = min(32, (os.cpu_count() or 1) + 4) + 1
"""One more than Python has threads for what blocks."""


def accepted(listener: socket.socket) -> list[socket.socket]:
    """Connections that come until none does for a second."""
    listener.settimeout(1)
    found: list[socket.socket] = []
    with contextlib.suppress(TimeoutError):
        while True:
            found.append(listener.accept()[0])
    return found


def test_checks_that_wait_leave_threads_to_others(nats_server: NatsServer, tmp_path: Path) -> None:
    line = {"operation": "INSERT", "schema": "public", "table": "t", "key": {"id": 1}, "before": None, "after": {"id": 1}}
    with (
        closing(listen("127.0.0.1", 0, "silent")) as silent,
        Served(nats_server.url, tmp_path) as served,
        served.client() as client,
        ThreadPoolExecutor(CHECKS) as pool,
    ):
        source = f"host: 127.0.0.1\nport: {silent.getsockname()[1]}\ndbname: d\nuser: u\n"
        assert client.put("/groups/checked/document", json={"yaml": f"group: checked\n{source}"}).status_code == 201
        asked = [pool.submit(client.post, "/groups/checked/check") for _ in range(CHECKS)]
        taken = accepted(silent)
        begun = time.monotonic()
        assert client.post("/rules/test", json={"lines": [line]}).status_code == 200
        assert time.monotonic() - begun < 5
        served.kill()
        for each in taken:
            each.close()
        assert all(isinstance(each.exception(), httpx.TransportError) for each in asked)
