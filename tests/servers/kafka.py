"""A real Kafka of one node, broker and controller in one JVM (KRaft).

It runs from Kafka's own jars (``maven``), and writes no log: they bring nothing that would.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from tests.servers.child import HOST, ChildProcess, PrivateDirectory, free_port
from tests.servers.maven import java, server_jars
from tests.servers.server_process import ServerProcess

HEAP = "384m"
SCRAM = "SCRAM-SHA-256", "SCRAM-SHA-512"
_QUICK_START = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"
"""Half of the processor time of a start: a test's broker does not live long enough for what compiles better."""

_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
"""The request that a broker answers first of all, of no client."""


class RealKafka(ServerProcess):
    """``settings`` go into server.properties.

    ``listeners`` are others beside the plain one, each with its security protocol, as ``SASL_SSL``; ``users`` are those of SCRAM
    with their passwords."""

    title = "Kafka"
    purpose = "kafka"
    start_deadline_s = 240.0

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(free_port())
        self._controller_port = free_port()
        self._cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._settings = dict(settings or {})
        self._protocols = {"PLAINTEXT": "PLAINTEXT"} | dict(listeners or {})
        self._ports = {name: self.port if name == "PLAINTEXT" else free_port() for name in self._protocols}
        self._users = dict(users or {})
        self.advertised_host = HOST
        """What the broker tells clients to connect to, from its next start on."""

    @property
    def bootstrap(self) -> str:
        """What clients call ``bootstrap.servers``."""
        return f"{HOST}:{self.port}"

    def bootstrap_of(self, listener: str) -> str:
        return f"{HOST}:{self._ports[listener]}"

    def configure(self, *arguments: str) -> None:
        """What ``kafka-configs.sh --alter`` does with these."""
        command = self._java("kafka.admin.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter", *arguments)
        configured = subprocess.run(command, capture_output=True, text=True, cwd=self.directory)
        if configured.returncode != 0:
            raise RuntimeError(f"Kafka could not be configured: {configured.stdout}{configured.stderr}")

    def _new_directory(self) -> PrivateDirectory:
        directory = super()._new_directory()
        self._format(directory.path)
        return directory

    def _format(self, directory: Path) -> None:
        """A new, empty log."""
        self._write_properties(directory)
        properties = str(directory / "server.properties")
        cluster = f"--cluster-id={self._cluster_id}"  # which may begin with a dash
        command = self._java("kafka.tools.StorageTool", "format", cluster, "-c", properties)
        for user, password in self._users.items():
            for mechanism in SCRAM:
                command += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
        formatted = subprocess.run(command, capture_output=True, text=True, cwd=directory)
        if formatted.returncode != 0:
            raise RuntimeError(f"Kafka's log could not be formatted: {formatted.stdout}{formatted.stderr}")

    def _write_properties(self, directory: Path) -> None:
        properties = self._properties(directory) | self._settings
        (directory / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def _properties(self, directory: Path) -> dict[str, str]:
        controller = f"CONTROLLER://{HOST}:{self._controller_port}"
        return {
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
        }

    def _addresses(self, host: str) -> str:
        return ",".join(f"{name}://{host}:{port}" for name, port in self._ports.items())

    def _java(self, *arguments: str) -> list[str]:
        return [java(), f"-Xmx{HEAP}", *_QUICK_START, "-cp", f"{server_jars('kafka')}/*", *arguments]

    def _spawn(self, directory: Path, log: Path) -> ChildProcess:
        self._write_properties(directory)
        return ChildProcess(self._java("kafka.Kafka", str(directory / "server.properties")), log_path=log, cwd=directory)

    def _answers(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
            return len(connection.recv(4)) == 4
