"""Directories for the time of one process, which go with it even when it is killed.

Their owner holds a lock on its directory as long as it lives. A directory that nobody holds is left over, and the next process
that makes one of that kind takes it away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path


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
    """A new directory in ``parent`` that only this user may enter. Removes those with this prefix that were left over."""
    for path in parent.glob(f"{prefix}*"):
        _remove_if_left_over(path)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for one who found the directory before it was locked, and takes it away
        if path.exists():
            return PrivateDirectory(path, lock)
        os.close(lock)


def _remove_if_left_over(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # somebody else's, or gone in the meantime
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
