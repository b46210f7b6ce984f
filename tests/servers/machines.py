"""Machines beside ours: each a network namespace with an address of its own, and a view of the disk without our checkout.

A machine has the libraries and Spark of our virtual environment, at another path (``PREFIX``), and its own empty /tmp and
/dev/shm. Ours has an address at which machines reach it; they reach each other too. Making them takes root.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.servers.child import ChildProcess, forget_namespace, register_namespace
from tests.servers.program import REPOSITORY

PREFIX = Path("/mnt")
"""Where a machine has what we have in ``sys.prefix``."""

_ON_A_MACHINE = f"""
set -e
prefix=$1 checkout=$2; shift 2
mount --bind "$prefix" {PREFIX}
for directory in "$checkout" /dev/shm /tmp $PGSLUICE_TEST_HIDDEN; do mount -t tmpfs tmpfs "$directory"; done
cd /tmp
exec "$@"
"""


class MachinesUnavailableError(Exception):
    """Network namespaces cannot be made here; the text says why."""


class Machine:
    """One of them; ``address`` is its own. Made and deleted by its network."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @property
    def launcher(self) -> list[str]:
        """What runs a command there, but with our view of the disk. The command takes its place, with its process number."""
        return ["ip", "netns", "exec", self.name]

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Nothing leaves the machine meanwhile, not even an answer. What runs there goes on, and reaches what else runs there."""
        rule = ("blackhole", "pref", "1")
        _ip("-n", self.name, "rule", "add", *rule)
        try:
            yield
        finally:
            _ip("-n", self.name, "rule", "delete", *rule)

    def start(self, command: Sequence[str], log_path: Path, env: dict[str, str], hidden: Sequence[str] = ()) -> ChildProcess:
        """Runs ``command`` there, with empty directories in the place of ``hidden``."""
        shell = ["sh", "-c", _ON_A_MACHINE, "sh", sys.prefix, str(REPOSITORY)]
        environment = env | {"PGSLUICE_TEST_HIDDEN": " ".join(hidden)}
        # "ip netns exec" gives it a mount namespace of its own, too.
        return ChildProcess([*self.launcher, *shell, *command], log_path=log_path, env=environment)


class MachineNetwork:
    """Some machines, and ours at ``address``. Leaving the context kills what runs on them, and deletes them."""

    def __init__(self, count: int = 2) -> None:
        """Raises MachinesUnavailableError."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise MachinesUnavailableError("network namespaces take root, and the program 'ip'")
        prefix = f"10.{random.randrange(64, 128)}"
        tag = f"pgs{os.getpid()}"
        self.address = f"{prefix}.1.1"
        self.machines = [Machine(f"{tag}-{number}", f"{prefix}.{number}.2") for number in range(1, count + 1)]
        self._made: list[Machine] = []
        try:
            for number, machine in enumerate(self.machines, 1):
                self._make(machine, f"{tag}.{number}", f"{prefix}.{number}.1")
            for number, machine in enumerate(self.machines):
                for other in self.machines[:number]:
                    self._connect(machine, other)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for machine in self._made:
            for pid in _ip("netns", "pids", machine.name).split():
                _kill(int(pid))
            _ip("netns", "delete", machine.name)
            forget_namespace(machine.name)
        self._made.clear()

    def _make(self, machine: Machine, link: str, our_address: str) -> None:
        try:
            _ip("netns", "add", machine.name)
        except subprocess.CalledProcessError as error:
            raise MachinesUnavailableError(f"no network namespace can be made: {error.stderr}") from None
        register_namespace(machine.name)
        self._made.append(machine)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", machine.name)
        _ip("address", "add", f"{our_address}/24", "dev", link)
        _ip("link", "set", link, "up")
        inside = ("-n", machine.name)
        _ip(*inside, "address", "add", f"{machine.address}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "route", "add", "default", "via", our_address)

    def _connect(self, one: Machine, other: Machine) -> None:
        to_other, to_one = f"to{other.name[-2:]}", f"to{one.name[-2:]}"
        _ip("-n", one.name, "link", "add", to_other, "type", "veth", "peer", "name", to_one, "netns", other.name)
        for machine, link, peer in ((one, to_other, other), (other, to_one, one)):
            _ip("-n", machine.name, "link", "set", link, "up")
            _ip("-n", machine.name, "route", "add", peer.address, "dev", link, "src", machine.address)


def _kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is as good."""
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    except psutil.NoSuchProcess:
        return


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
