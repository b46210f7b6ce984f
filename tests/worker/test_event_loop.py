"""The end of a task in the background is told, and is waited for when it was asked for."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

from pgsluice.shared.errors import TaskEndedError, TransientError
from pgsluice.worker.event_loop import WatchedTask


def not_expected(error: BaseException) -> None:
    raise AssertionError("nobody was to be told") from error


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    """As a publish of the NATS client does that flushes at that moment."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def publish_for_ever() -> None:
        started.set()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = WatchedTask("the task", publish_for_ever(), not_expected)
    await started.wait()
    await asyncio.wait_for(task.cancel(), 120)
    assert ended.is_set()


async def test_a_task_that_ends_by_itself_is_told_like_one_that_fails() -> None:
    told: asyncio.Queue[BaseException] = asyncio.Queue()

    async def end() -> None:
        return

    async def fail() -> None:
        raise ValueError("broken")

    async def be_cancelled() -> None:
        raise asyncio.CancelledError

    for call, how in ((end(), ""), (fail(), " (ValueError at "), (be_cancelled(), " (CancelledError)")):
        WatchedTask("the task", call, told.put_nowait)
        error = await asyncio.wait_for(told.get(), 120)
        assert isinstance(error, TaskEndedError)
        assert (error.exit_code, error.fact.startswith(f"the task ended unexpectedly{how}")) == (75, True)
        assert "broken" not in str(error)


async def test_an_error_of_ours_that_ends_a_task_keeps_its_meaning() -> None:
    told: asyncio.Queue[BaseException] = asyncio.Queue()

    async def fail() -> None:
        raise TransientError("ours")

    WatchedTask("the task", fail(), told.put_nowait)
    error = await asyncio.wait_for(told.get(), 120)
    assert (type(error), str(error)) == (TransientError, "ours")


ENDS_BEFORE_ITS_LOOP = """
import asyncio, ctypes, sys
from pgsluice.worker.event_loop import EventLoopThread

libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(600_000), None)  # between the interpreter's end and the process's

async def wait():
    tasks.append(asyncio.create_task(asyncio.sleep(0.3)))

tasks = []
EventLoopThread("left").run(wait())
sys.exit(75)
"""


def test_a_process_that_leaves_a_loop_running_ends_with_its_own_exit_code() -> None:
    """An event comes when there is no interpreter any more to take it."""
    assert subprocess.run([sys.executable, "-c", ENDS_BEFORE_ITS_LOOP]).returncode == 75
