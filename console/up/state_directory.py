"""The directory of ``pgsluice up``: the broker's store and token, the configuration, the logs.

One ``up`` at a time uses it. It holds a lock, and so do the processes that it starts: should it be killed, the next one waits
until they have ended too. Two brokers on one store would destroy it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgsluice.console.processes.log_file import LogFile
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.process.private_file import OURS_ALONE, state_home

_LEFT_OVER_S = 60.0
"""Time for processes of a killed ``up`` to end their current work."""

_LOOK_INTERVAL_S = 0.1


def usual_directory(group: str) -> Path:
    return state_home() / "up" / group


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """``lock`` is the descriptor that child processes hold too."""

    path: Path
    lock: int

    @property
    def configuration(self) -> Path:
        """The configuration file of replicator and worker, also for any other command of the group."""
        return self.path / "pgsluice.yaml"

    def log(self, name: str) -> LogFile:
        return LogFile(self.path / f"{name}.log")


def prepare(path: Path) -> Path:
    """Returns ``path``, created if it is missing. Raises TerminalError when others can read it: it holds the broker's
    token and rows that wait in its streams."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise TerminalError(
            f"the state directory {path} cannot be made ({type(error).__name__})", "give another --state-dir"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise TerminalError(
            f"the state directory {path} is open to others", f"chmod 700 {path}, as its owner, or give another --state-dir"
        )
    return path


@contextmanager
def locked(path: Path) -> Iterator[StateDirectory]:
    """Locks the directory exclusively. Raises TerminalError when another ``up`` uses it, TransientError when the
    processes of a killed one do not end."""
    descriptor = os.open(prepare(path) / "lock", os.O_RDWR | os.O_CREAT, OURS_ALONE)
    try:
        _lock(path, descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield StateDirectory(path, descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path, descriptor: int) -> None:
    end, is_told = time.monotonic() + _LEFT_OVER_S, False
    while not _is_taken(descriptor):
        holder = os.pread(descriptor, 20, 0).decode()
        if holder and _is_alive(int(holder)):
            raise TerminalError(
                f"another 'pgsluice up' (process {holder}) uses {path}",
                "stop that one, or give another --group or --state-dir",
            )
        if time.monotonic() > end:
            raise TransientError(f"processes of an earlier 'pgsluice up' in {path} have not ended", "try again, or end them")
        if not is_told:
            sys.stderr.write("waiting until processes of an earlier 'pgsluice up', which was killed, finish their current work\n")
            is_told = True
        time.sleep(_LOOK_INTERVAL_S)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
