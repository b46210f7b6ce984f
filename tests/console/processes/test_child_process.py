"""A child process: its session, its log, and that it never outlives the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pgsluice.console.processes.child_process import ChildProcess, Command
from pgsluice.console.processes.log_file import LogFile
from tests.waiting import wait_on_loop, wait_until

REPOSITORY = Path(__file__).resolve().parents[3]

PARENT = """
import asyncio, sys
from pathlib import Path
from pgsluice.console.processes.child_process import ChildProcess, Command
from pgsluice.console.processes.log_file import LogFile

async def main():
    command = Command("sleeper", ("/bin/sleep", "600"), {}, LogFile(Path(sys.argv[1])))
    child = await ChildProcess.start(command)
    print(child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


def shell(directory: Path, script: str, **more: object) -> Command:
    environment = {"PATH": os.environ["PATH"], "SECRET": "hunter2"}
    return Command("shell", ("/bin/sh", "-c", script), environment, LogFile(directory / "log"), **more)  # type: ignore[arg-type]


async def test_what_it_writes_is_in_its_log_and_the_exit_code_is_its_own(tmp_path: Path) -> None:
    child = await ChildProcess.start(shell(tmp_path, "echo out; echo $SECRET >&2; exit 7"))
    assert await child.wait() == 7
    assert child.last_lines(5) == ["out", "hunter2"]
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


async def test_the_log_of_an_earlier_process_is_not_taken_for_its_own(tmp_path: Path) -> None:
    for word in ("first", "second"):
        child = await ChildProcess.start(shell(tmp_path, f"echo {word}"))
        await child.wait()
    assert child.last_lines(5) == ["second"]
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


async def test_standard_output_can_go_elsewhere(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as output:
        child = await ChildProcess.start(shell(tmp_path, "echo rows; echo log >&2", output=output.fileno()))
        await child.wait()
    assert (tmp_path / "output").read_text() == "rows\n"
    assert child.last_lines(5) == ["log"]


async def test_it_is_in_a_session_of_its_own_and_is_killed_with_what_it_started(tmp_path: Path) -> None:
    child = await ChildProcess.start(shell(tmp_path, "trap '' TERM; sleep 600 & echo $!; wait"))
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        await wait_on_loop(lambda: child.last_lines(1))
        grandchild = psutil.Process(int(child.last_lines(1)[0]))
    finally:
        child.kill()
    assert await child.wait() == -signal.SIGKILL
    wait_until(lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE)


async def test_it_is_asked_to_stop_by_sigterm(tmp_path: Path) -> None:
    child = await ChildProcess.start(shell(tmp_path, "trap 'echo ended; exit 0' TERM; echo ready; while :; do sleep 0.05; done"))
    await wait_on_loop(lambda: child.last_lines(1))
    child.stop()
    assert await child.wait() == 0
    assert child.last_lines(1) == ["ended"]
    child.stop()  # of one that ended, nothing happens
    child.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_it_ends_when_its_parent_dies_however_that_happens(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.send_signal(number)
    parent.wait(30)
    wait_until(lambda: not child.is_running())
