"""Memory that was freed is used again, and goes back to the system when it is told to."""

from __future__ import annotations

import subprocess
import sys

MEASURED = """
import os, resource, sys
from pgsluice.shared.process.memory import give_back_freed_memory, reuse_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def copy_messages():
    for _ in range(50):
        blocks = [b"x" * (1 << 20) for _ in range(8)]

if "reuse" in sys.argv:
    reuse_freed_memory()
before = resident()
copy_messages()
first = faults()
copy_messages()
taken_anew = faults() - first
blocks = [b"x" * (1 << 20) for _ in range(20)]
last = b"x" * 100_000  # on top of them
del blocks
if "give back" in sys.argv:
    give_back_freed_memory()
print(taken_anew, resident() - before)
"""


def measured(*steps: str) -> tuple[int, int]:
    """Pages that were mapped for blocks like those before, and bytes that the process keeps of 20 MiB that it freed."""
    command = [sys.executable, "-c", MEASURED, *steps]
    pages, kept = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(pages), int(kept)


def test_a_process_uses_again_what_it_freed() -> None:
    assert measured()[0] > 50_000, "or the C library needs no telling any more"
    assert measured("reuse")[0] < 5_000


def test_a_process_that_rests_gives_back_what_it_freed() -> None:
    assert measured("reuse")[1] > 16 << 20
    assert measured("reuse", "give back")[1] < 8 << 20
