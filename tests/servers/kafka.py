"""A real Kafka of one node, broker and controller in one JVM (KRaft).

It runs from Kafka's own jars (``maven``), and writes no log: they bring nothing that would.
"""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.child import HOST, STOP_DEADLINE_S, ChildProcess, PrivateDirectory, free_port, pause
from tests.servers.maven import java, server_jars
from tests.waiting import wait_until

START_DEADLINE_S = 240.0
HEAP = "384m"

_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
"""The request that a broker answers first of all, of no client."""


class RealKafka:
    """``settings`` go into server.properties; ``start`` after ``stop`` or ``kill`` continues on the same log and port.

    ``listeners`` are others beside the plain one, each with its security protocol, as ``SASL_SSL``; ``users`` are those of SCRAM
    with their passwords."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self._controller_port = free_port()
        self._settings = dict(settings or {})
        self._protocols = {"PLAINTEXT": "PLAINTEXT"} | dict(listeners or {})
        self._ports = {name: self.port if name == "PLAINTEXT" else free_port() for name in self._protocols}
        self._users = dict(users or {})
        self.advertised_host = HOST
        """What the broker tells clients to connect to, from its next start on."""
        self._directory: PrivateDirectory | None = None
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """What clients call ``bootstrap.servers``."""
        return f"{HOST}:{self.port}"

    def bootstrap_of(self, listener: str) -> str:
        return f"{HOST}:{self._ports[listener]}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What the JVM itself said."""
        return (self._private() / "log").read_text(errors="replace")

    def _private(self) -> Path:
        if self._directory is None:
            self._directory = PrivateDirectory("kafka")
            self._format(self._directory.path)
        return self._directory.path

    def _format(self, directory: Path) -> None:
        """A new, empty log."""
        self._write_properties(directory)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(directory / "server.properties"))
        for user, password in self._users.items():
            command += ["--add-scram", f"SCRAM-SHA-256=[name={user},password={password}]"]
        formatted = subprocess.run(command, capture_output=True, text=True, cwd=directory)
        if formatted.returncode != 0:
            raise RuntimeError(f"Kafka's log could not be formatted: {formatted.stdout}{formatted.stderr}")

    def _write_properties(self, directory: Path) -> None:
        controller = f"CONTROLLER://{HOST}:{self._controller_port}"
        properties = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{self._addresses(HOST)},{controller}",
            "advertised.listeners": self._addresses(self.advertised_host),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in (self._protocols | {"CONTROLLER": "PLAINTEXT"}).items()
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(directory / "data"),
            "num.partitions": "1",
            # Topics of the broker's own, whose defaults are three nodes' and fifty partitions.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        } | self._settings
        (directory / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def _addresses(self, host: str) -> str:
        return ",".join(f"{name}://{host}:{port}" for name, port in self._ports.items())

    def _java(self, *arguments: str) -> list[str]:
        return [java(), f"-Xmx{HEAP}", "-cp", f"{server_jars('kafka')}/*", *arguments]

    def start(self) -> None:
        """Returns when clients are served."""
        assert not self.is_running, "the broker is running already"
        directory = self._private()
        self._write_properties(directory)
        self._process = ChildProcess(
            self._java("kafka.Kafka", str(directory / "server.properties")), log_path=directory / "log", cwd=directory
        )
        if wait_until(self._started, deadline_s=START_DEADLINE_S, what="start of Kafka") is not True:
            raise RuntimeError(f"Kafka did not start: {self.log()}")

    def _started(self) -> bool | str:
        """True, False ("not yet") or "ended"."""
        assert self._process is not None
        if self._process.poll() is not None:
            return "ended"
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
                return len(connection.recv(4)) == 4
        except OSError:
            return False

    def stop(self) -> None:
        """A clean stop. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send(signal.SIGTERM)
            self._process.wait(STOP_DEADLINE_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def pause(self) -> None:
        """It stops in its tracks, with all its connections open."""
        pause(self.pid)

    def resume(self) -> None:
        """Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def close(self) -> None:
        """Kills the broker and removes its log."""
        if self._directory is None:
            return
        self.kill()
        self._directory.remove()
        self._directory = self._process = None
