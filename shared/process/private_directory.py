"""Directories for the time of one process, which go with it even when it is killed.

Their owner holds a lock on a file in its directory as long as it lives (on a file, because some network file systems do
not lock directories). A directory without a lock is left over, and the next process that makes one of that kind takes
it away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

LOCK = "lock"
"""The name of the file. Code that empties the directory leaves it there."""


@dataclass(frozen=True, slots=True)
class PrivateDirectory:
    """``lock`` is the file descriptor whose end gives the directory up."""

    path: Path
    lock: int

    def close(self) -> None:
        """Removes the directory with all that is in it. To be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_private_directory(parent: Path, prefix: str) -> PrivateDirectory:
    """Makes a new directory in ``parent`` that only this user may enter. Removes those with this prefix that were left
    over."""
    for path in parent.glob(f"{prefix}*"):
        _remove_if_left_over(path)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = _open_lock(path)
        except FileNotFoundError:  # another process found the directory without a lock, and took it away
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for a process that locked it first, and removes it
        if _is_in_place(path, lock):
            return PrivateDirectory(path, lock)
        os.close(lock)


def free_bytes(path: Path) -> int:
    """Returns the bytes that can still be written at ``path``."""
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def _open_lock(directory: Path) -> int:
    """Creates the file if need be: a directory without one is being made, or its owner died on the way."""
    inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return os.open(LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=inside)
    finally:
        os.close(inside)


def _is_in_place(directory: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(directory / LOCK), os.fstat(lock))
    except FileNotFoundError:
        return False


def _remove_if_left_over(path: Path) -> None:
    try:
        lock = _open_lock(path)
    except OSError:  # another process's, or gone in the meantime
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
