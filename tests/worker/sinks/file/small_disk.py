"""A file system that can be filled up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path) -> Iterator[Callable[[int], None]]:
    """A file system of 1 MiB at ``at``; what it yields leaves only so many free bytes on it."""
    at.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=1m tmpfs {at} 2>/dev/null") != 0:
        pytest.skip("needs root that may mount")
    ballast = at / "ballast"

    def leave(free: int) -> None:
        ballast.unlink(missing_ok=True)
        available = os.statvfs(at).f_bavail * os.statvfs(at).f_frsize
        ballast.write_bytes(bytes(max(0, available - free)))

    try:
        yield leave
    finally:
        os.system(f"umount --lazy {at}")
