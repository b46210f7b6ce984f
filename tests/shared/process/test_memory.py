"""What was freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

GROWTH = """
import os, sys
from pgsluice.shared.process.memory import give_back_freed_memory

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "True":
    give_back_freed_memory()
large = b"x" * (30 << 20)
del large
before = resident()
blocks = [b"x" * (4 << 20) for _ in range(16)]
last = b"x" * 100_000  # on top of them
del blocks
print(resident() - before)
"""


def growth(*, gives_back: bool) -> int:
    """Bytes that a process keeps after it freed 64 MiB."""
    command = [sys.executable, "-c", GROWTH, str(gives_back)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_process_does_not_keep_what_it_freed() -> None:
    assert growth(gives_back=False) > 32 << 20, "or the C library needs no telling any more"
    assert growth(gives_back=True) < 8 << 20
