"""A real standalone Spark cluster: its master on our machine, its workers on others, with a secret and encrypted connections."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from tests.servers.child import STOP_DEADLINE_S, ChildProcess, PrivateDirectory, free_port
from tests.servers.machines import PREFIX, Machine, MachineNetwork
from tests.waiting import wait_until

START_DEADLINE_S = 120.0
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

_WITH_PROPERTIES = """
umask 077
printf '%s' "$PGSLUICE_TEST_PROPERTIES" > /tmp/spark.properties
unset PGSLUICE_TEST_PROPERTIES
exec "$@"
"""
"""The cluster's secret is neither in an argument nor in the environment that executors inherit."""


class SparkMachine:
    """A machine with a Spark worker, which starts executors for whoever the master sends."""

    def __init__(self, cluster: SparkCluster, machine: Machine) -> None:
        self.address = machine.address
        self._cluster = cluster
        self._machine = machine
        self._worker: ChildProcess | None = None

    def start(self, hidden: Sequence[str] = ()) -> None:
        """Returns when the worker has registered. ``hidden`` are directories that are empty there."""
        home = PREFIX / Path(pyspark.__file__).parent.relative_to(sys.prefix)
        environment = {
            "PATH": f"{PREFIX}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": self.address,
            "PGSLUICE_TEST_PROPERTIES": self._cluster.properties,
        }
        if "JAVA_HOME" in os.environ:
            environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        command = [
            str(home / "bin" / "spark-class"),
            "org.apache.spark.deploy.worker.Worker",
            *("--host", self.address, "--webui-port", "0", "--cores", str(self._cluster.cores), "--memory", "4g"),
            *("--work-dir", "/tmp/work", "--properties-file", "/tmp/spark.properties"),
            self._cluster.master,
        ]
        before = self.log().count(_REGISTERED)
        self._worker = self._machine.start(["sh", "-c", _WITH_PROPERTIES, "sh", *command], self._log_path, environment, hidden)
        wait_until(
            lambda: self.log().count(_REGISTERED) > before, deadline_s=START_DEADLINE_S, what=f"Spark worker: {self.log()}"
        )

    @property
    def _log_path(self) -> Path:
        return self._cluster.directory / self.address

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def executors(self) -> list[psutil.Process]:
        """JVMs that run tasks now."""
        if self._worker is None or self._worker.poll() is not None:
            return []
        return [each for each in psutil.Process(self._worker.pid).children(recursive=True) if EXECUTOR in command_of(each)]

    def processes(self) -> list[psutil.Process]:
        """All that run there."""
        assert self._worker is not None
        process = psutil.Process(self._worker.pid)
        return [process, *process.children(recursive=True)]

    def executor_log(self) -> str:
        """What all executors said that were started since ``start``, and their Python processes."""
        assert self._worker is not None
        work = Path(f"/proc/{self._worker.pid}/root/tmp/work")
        return "\n".join(path.read_text(errors="replace") for path in sorted(work.glob("*/*/std*")))

    def kill(self) -> None:
        """The Spark worker, its executors and their Python processes, all at once."""
        if self._worker is not None:
            self._worker.kill()


class SparkCluster:
    """``machines`` are started one by one. Each offers ``cores`` to applications, whatever the processor has. Leaving the context
    kills all of it."""

    def __init__(self, network: MachineNetwork, cores: int = 8) -> None:
        self.cores = cores
        self._directory = PrivateDirectory("standalone")
        self._host = network.address
        self._secret = secrets.token_hex(16)
        self.master = f"spark://{network.address}:{free_port()}"
        self.machines = [SparkMachine(self, machine) for machine in network.machines]
        self._process: ChildProcess | None = None

    @property
    def directory(self) -> Path:
        return self._directory.path

    @property
    def secret(self) -> str:
        return self._secret

    @property
    def security(self) -> dict[str, str]:
        """What each side has to be told."""
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self._secret,
            "spark.network.crypto.enabled": "true",
        }

    @property
    def properties(self) -> str:
        return "".join(f"{name} {value}\n" for name, value in self.security.items())

    def settings(self, **more: str) -> dict[str, Any]:
        """What an application is told of the cluster (``spark:``)."""
        return {"master": self.master, "memory": "512m", "spark.driver.host": self._host} | self.security | more

    def __enter__(self) -> Self:
        home = Path(pyspark.__file__).parent
        properties = self.directory / "spark.properties"
        properties.write_text(self.properties)
        host, _, port = self.master.removeprefix("spark://").rpartition(":")
        command = [
            str(home / "bin" / "spark-class"),
            "org.apache.spark.deploy.master.Master",
            *("--host", host, "--port", port, "--webui-port", "0", "--properties-file", str(properties)),
        ]
        environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": host}
        log = self.directory / "master"
        self._process = ChildProcess(command, log_path=log, env=environment)
        wait_until(lambda: "New state: ALIVE" in log.read_text(), deadline_s=START_DEADLINE_S, what="Spark's master")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            for machine in self.machines:
                print(machine.address, machine.log()[-2000:], sep="\n")
        for machine in self.machines:
            machine.kill()
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_DEADLINE_S)
        self._directory.remove()


_REGISTERED = "Successfully registered with master"


def command_of(process: psutil.Process) -> list[str]:
    """Empty when it is gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
