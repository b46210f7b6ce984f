"""What processes cost, read from the system."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.process_memory import Memory, RoleMemory, by_role, parse_rollup
from benchmarks.processes import WHOLE_WORKER, WORKER, ProcessWatch, family
from tests.waiting import wait_until

ROLLUP = """\
55d0c1e00000-7ffd8a5f9000 ---p 00000000 00:00 0                          [rollup]
Rss:              149224 kB
Pss:               41018 kB
Pss_Dirty:         20000 kB
Shared_Clean:      22344 kB
"""

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
PARENT_OF_ENDED_CHILD = f"""
import subprocess, sys
subprocess.run([sys.executable, '-c', {BURN!r}], check=True)
print('ready', flush=True)
sys.stdin.read()
"""
PARENT_THAT_FORGETS = f"""
import signal, subprocess, sys, time
def burn(*_):
    while time.process_time() < 0.3: pass
signal.signal(signal.SIGUSR1, burn)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is reaped by nobody, and its costs are in nobody's sum
child = subprocess.Popen([sys.executable, '-c', {BURN!r} + "print('ready', flush=True)\\ninput()"], stdin=subprocess.PIPE)
sys.stdin.read()
"""
PARENT_THAT_SHARES = """
import os, sys
held = bytearray(os.urandom(64 << 20))
if os.fork() == 0:
    print('ready', flush=True)
sys.stdin.read()
"""


@contextmanager
def running(script: str) -> Iterator[int]:
    """The pid of a Python process that has said that it is ready."""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def test_the_sizes_of_a_rollup_are_bytes() -> None:
    assert parse_rollup(ROLLUP) == Memory(149224 * 1024, 41018 * 1024)


def test_memory_that_two_processes_share_counts_once_in_their_sum() -> None:
    with running(PARENT_THAT_SHARES) as pid:
        memory = RoleMemory.of(by_role({"shared": pid})["shared"])
    assert memory.processes == 2
    assert memory.rss_bytes > 2 * (64 << 20)
    assert (64 << 20) < memory.pss_bytes < 1.5 * (64 << 20)
    assert (64 << 20) < memory.largest_rss_bytes < memory.rss_bytes


def test_what_has_ended_has_no_memory() -> None:
    with running(PARENT_OF_ENDED_CHILD) as pid:
        assert len(by_role({"parent": pid})["parent"]) == 1
    assert by_role({"parent": pid}) == {}


def test_a_worker_has_spent_what_its_ended_processes_spent() -> None:
    with ProcessWatch({}) as watch, running(PARENT_OF_ENDED_CHILD) as pid:
        watch.add(WORKER, pid)
        assert watch.cpu_s(WHOLE_WORKER) == pytest.approx(0.35, abs=0.15)
        watch.stop()
        assert watch.usage()[WHOLE_WORKER].cpu_s >= 0.28


def test_what_ended_unreaped_stays_in_what_the_worker_has_spent() -> None:
    with ProcessWatch({}) as watch, running(PARENT_THAT_FORGETS) as pid:
        watch.add(WORKER, pid)
        assert watch.cpu_s(WHOLE_WORKER) >= 0.28
        [parent, child] = family(pid)
        child.kill()
        wait_until(lambda: len(list(family(pid))) == 1)
        parent.send_signal(signal.SIGUSR1)
        wait_until(lambda: sum(parent.cpu_times()[:2]) >= 0.28)
        watch.stop()
        assert watch.usage()[WHOLE_WORKER].cpu_s >= 0.55
