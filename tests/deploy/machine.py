"""A machine that pgsluice is installed on as the documents say: namespaces of this one, with another account and other limits.

``machine.sh`` makes it. The program is in /opt/pgsluice, the account is ``pgsluice``, servers of this machine are reached on
127.0.0.1, and /run/machine is the directory that a test shares with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

from tests.servers.child import ChildProcess, PrivateDirectory
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until

SCRIPTS = Path(__file__).parent
BOOT_DEADLINE_S = 60.0

_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc")


def needs_namespaces() -> None:
    """Skips the test where this process may not make them."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a machine of namespaces")
    tried = subprocess.run([*_UNSHARE, "mount", "--make-rprivate", "/"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no namespaces here: {tried.stderr.strip()}")


class Machine:
    """Runs ``init`` as its process 1; when that ends, or the context is left, all of its processes end."""

    def __init__(self, *init: str, group: _ControlGroup | None = None) -> None:
        self._private = PrivateDirectory("machine")
        self._private.path.chmod(0o755)
        self._init = init
        self._group = group
        self._process: ChildProcess | None = None

    @property
    def directory(self) -> Path:
        """The machine's /run/machine."""
        return self._private.path

    def __enter__(self) -> Self:
        made = ("bash", str(SCRIPTS / "machine.sh"), str(self.directory), sys.base_prefix, sysconfig.get_path("purelib"))
        command = [*_UNSHARE, *made, str(REPOSITORY), *self._init]
        if self._group is not None:
            command = self._group.entered(command)
        self._process = ChildProcess(command, log_path=self.directory / "log")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            print(self.log()[-8000:])
        if self._process is not None:
            self._process.kill()
        if self._group is not None:
            self._group.remove()
        self._private.remove()

    def log(self) -> str:
        """What process 1 and those that share its standard error wrote."""
        return (self.directory / "log").read_text(errors="replace")

    def wait(self, deadline_s: float) -> int:
        assert self._process is not None, "the machine was not started"
        return self._process.wait(deadline_s)

    @property
    def first_process(self) -> psutil.Process:
        """Process 1 as it is known outside."""
        assert self._process is not None, "the machine was not started"
        (first,) = wait_until(psutil.Process(self._process.pid).children, what="process 1 of the machine")
        return first

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs the command as root on the machine, in the checkout."""
        inside = ["nsenter", "--target", str(self.first_process.pid), "--all", "--wdns=/opt/checkout", *command]
        return subprocess.run(inside, capture_output=True, text=True, timeout=BOOT_DEADLINE_S)

    def succeed(self, *command: str) -> str:
        """What the command printed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


class SystemdMachine(Machine):
    """Its process 1 is a real systemd, with no unit but those that are installed."""

    def __init__(self) -> None:
        boot = ("unshare", "--cgroup", "bash", "/opt/checkout/tests/deploy/boot_systemd.sh")
        super().__init__(*boot, group=_ControlGroup())

    def __enter__(self) -> Self:
        super().__enter__()
        wait_until(self._is_up, deadline_s=BOOT_DEADLINE_S, what="systemd")
        return self

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return self.run("systemctl", "is-system-running").stdout.strip() == "running"

    def shown(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties as ``systemctl show`` names them."""
        text = self.succeed("systemctl", "show", unit, *(f"--property={name}" for name in properties))
        return dict(line.split("=", 1) for line in text.splitlines())


class _ControlGroup:
    """One of the machine's own, below which systemd makes its units' ones; made when a process enters it."""

    def __init__(self) -> None:
        mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        root = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
        if root is None:
            pytest.skip("no control groups of version 2 are mounted here")
        self._path = root / f"pgsluice-test-{uuid.uuid4().hex[:12]}"

    def entered(self, command: Sequence[str]) -> list[str]:
        script = 'mkdir "$0" && echo $$ > "$0/cgroup.procs" && exec "$@"'
        return ["sh", "-c", script, str(self._path), *command]

    def remove(self) -> None:
        """All processes have ended, but the kernel may not have noticed."""
        wait_until(self._is_removed, what="the end of the machine's control groups")

    def _is_removed(self) -> bool:
        for directory, _, _ in os.walk(self._path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        return not self._path.exists()


def systemd_is_installed() -> bool:
    return Path("/lib/systemd/systemd").exists() and shutil.which("systemctl") is not None
