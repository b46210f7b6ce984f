"""A child process with its private directory: started, stopped, killed with all its descendants, cleaned up."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from tests.servers import last_lines
from tests.servers.fork_server import ForkedProcess
from tests.servers.reaper import Reaper
from tests.waiting import wait_until

HOST = "127.0.0.1"
STOP_DEADLINE_S = 60.0

_PORTS = range(20000, 32000)
"""Below the range from which Linux takes the ports of outgoing connections: a stopped server's port stays free for it."""
_REMEMBERED_PORTS = 500

_given: deque[int] = deque(maxlen=_REMEMBERED_PORTS)

_reaper = Reaper()


def unprivileged_user() -> pwd.struct_passwd | None:
    """Whom servers run as when we are root (PostgreSQL refuses to run as root); None when we are not."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def free_port() -> int:
    """Returns a port on which nobody listens, and which was not given out lately: whoever has it may listen a while later. Each
    process of a run of tests has ports of its own."""
    number, count = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:], os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    own = _PORTS[int(number) :: int(count)]
    for port in random.sample(own, len(own)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                if port not in _given:
                    probe.bind((HOST, port))
                    _given.append(port)
                    return port
    raise RuntimeError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def pause(pid: int) -> None:
    """SIGSTOP, seen through: no thread of the process runs any more when this returns. On a busy machine the signal alone
    takes its time: the threads go on until the one that is to take it gets a processor."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _stands_still(pid), what=f"stop of process {pid}", interval_s=0.001)


def _stands_still(pid: int) -> bool:
    """Also when it is gone."""
    try:
        return all(_state(thread) in "TtZX" for thread in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return not psutil.pid_exists(pid)


def _state(thread: Path) -> str:
    """As in proc(5), ``stat``, after the name in parentheses."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def signal_tree(pid: int, number: int) -> None:
    """To the process and to every descendant, the process first. Daemons that Spark looks up data sources with end by some
    signals, and end their own children before it is their turn."""
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def pause_tree(pid: int) -> None:
    """``pause`` of the process and of every descendant, the process first."""
    pause(pid)
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            pause(child.pid)


def register_namespace(name: str) -> None:
    """A network namespace that is deleted when this Python process ends without having done so."""
    _reaper.tell(f"namespace {name}")


def forget_namespace(name: str) -> None:
    _reaper.tell(f"deleted {name}")


def _title(command: Sequence[str]) -> str:
    """The program's name, and its first arguments where it is Python's: those say which program it is."""
    words = [Path(command[0]).name, *command[1:]]
    return " ".join(words[:5] if words[0].startswith("python") else words[:1])


class PrivateDirectory:
    """A new directory that only its owner can read; ``remove`` may be called twice, and is called at exit."""

    def __init__(self, purpose: str, owner: pwd.struct_passwd | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"pgsluice-{purpose}-{os.getpid()}-"))
        _reaper.tell(f"directory {self.path}")
        if owner is not None:
            os.chown(self.path, owner.pw_uid, owner.pw_gid)
        atexit.register(self.remove)

    def remove(self) -> None:
        last_lines.keep(self.path)
        if self.path.exists():
            shutil.rmtree(self.path)
        _reaper.tell(f"removed {self.path}")
        atexit.unregister(self.remove)


def remove_leftovers() -> None:
    """Removes private directories whose owner is gone and was cut off together with its reaper, and kills what runs in them. What
    another user of the machine gave such a name is left alone."""
    user = unprivileged_user()
    ours = {os.geteuid()} | (set() if user is None else {user.pw_uid})
    for path in Path(tempfile.gettempdir()).glob("pgsluice-*-*-*"):
        owner = path.name.split("-")[-2]
        is_left = owner.isdigit() and not psutil.pid_exists(int(owner))
        if is_left and _owner_of(path) in ours and not path.is_symlink():
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                    if Path(process.cwd()).is_relative_to(path) or str(path) in " ".join(process.cmdline()):
                        process.kill()
            shutil.rmtree(path, ignore_errors=True)


def _owner_of(path: Path) -> int | None:
    """None when it is gone: another run that began removes what was left, too."""
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_uid
    return None


class ChildProcess:
    """One process in a session of its own, its standard error (and output, unless given) in files.

    ``orphan_signal`` is sent to it when this Python process ends without having stopped it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        stdout_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: pwd.struct_passwd | None = None,
        orphan_signal: int = signal.SIGKILL,
        start: Callable[[IO[bytes], IO[bytes]], subprocess.Popen[bytes] | ForkedProcess] | None = None,
    ) -> None:
        """``start`` starts it otherwise than by ``command``, with standard output and error."""
        with contextlib.ExitStack() as files:
            log = files.enter_context(log_path.open("ab"))
            output = log if stdout_path is None else files.enter_context(stdout_path.open("ab"))
            self._process: subprocess.Popen[bytes] | ForkedProcess
            if start is not None:
                self._process = start(output, log)
            else:
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=log,
                    cwd=cwd,
                    env=None if env is None else dict(env),
                    user=None if user is None else user.pw_uid,
                    group=None if user is None else user.pw_gid,
                    extra_groups=None if user is None else [],
                    start_new_session=True,
                )
        self.pid = self._process.pid
        last_lines.watch(_title(command), log_path)
        _reaper.tell(f"process {self.pid} {int(orphan_signal)}")

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        exit_code = self._process.poll()
        if exit_code is not None:
            _reaper.tell(f"forget {self.pid}")
        return exit_code

    def wait(self, deadline_s: float) -> int:
        """The exit code; raises DeadlineError when it still runs after ``deadline_s``."""
        wait_until(lambda: self.poll() is not None, deadline_s=deadline_s, what=f"end of process {self.pid}")
        exit_code = self.poll()
        assert exit_code is not None
        return exit_code

    def send(self, signal_number: int) -> None:
        """To the process itself, not to its descendants; nothing happens when it ended."""
        if self.poll() is None:
            self._process.send_signal(signal_number)

    def send_all(self, signal_number: int) -> None:
        """``signal_tree`` of it."""
        signal_tree(self.pid, signal_number)

    def kill(self) -> None:
        """SIGKILL to it and to every descendant; returns when none of them is left."""
        victims = self._tree()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        self.wait(STOP_DEADLINE_S)
        _, alive = psutil.wait_procs(victims, timeout=STOP_DEADLINE_S)
        if alive:
            raise RuntimeError(f"processes {[process.pid for process in alive]} survived SIGKILL")

    def _tree(self) -> list[psutil.Process]:
        """The process is stopped while its descendants are listed, so that it cannot start more."""
        if self.poll() is not None:
            return []
        pause(self.pid)
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    def memory_bytes(self) -> int:
        """Resident memory of the process itself."""
        return int(psutil.Process(self.pid).memory_info().rss)
