"""One asyncio loop on a separate thread, for code that is called synchronously (sinks, the driver, Spark tasks).

The loop keeps running between calls, so that a NATS connection made on it answers pings and reconnects automatically.
Background tasks on it are watched: none may die unnoticed and leave a process that only seems alive.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from pgsluice.shared.process.defect import ended_task

CANCEL_DEADLINE_S = 5.0
CANCEL_INTERVAL_S = 0.05
STOP_DEADLINE_S = 1.0

T = TypeVar("T")

Ended = Callable[[BaseException], None]
"""Called with the error that ended a task, on its event loop."""


class EventLoopThread:
    """A daemon thread; ``close`` ends it, and the end of the process does, which waits for no call that runs on it."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Returns the result of ``coroutine``, or raises its error; TimeoutError after ``timeout_s``, and the coroutine
        is cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what still runs, stops the loop and waits for its thread."""
        self.run(_cancel_others())
        self.stop()
        self.loop.close()

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends the thread, and leaves what runs on the loop where it is. Does nothing in a process that was forked since."""
        _running.discard(self)
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout_s)


_running: set[EventLoopThread] = set()


@atexit.register
def _stop_running() -> None:
    """An event that reaches uvloop when the interpreter is gone ends the process with SIGSEGV instead of its exit code."""
    for thread in list(_running):
        thread.stop(STOP_DEADLINE_S)


async def _cancel_others() -> None:
    """Cancels remaining calls, which may still have a connection to close."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_DEADLINE_S)


class WatchedTask:
    """Runs ``call`` on the running event loop; ``on_ended`` is called when it ends in any way except ``cancel``.

    A cancellation by other code is such a way: a call of the NATS client ends so when its connection is closed.
    """

    def __init__(self, name: str, call: Coroutine[Any, Any, None], on_ended: Ended) -> None:
        self._name = name
        self._on_ended = on_ended
        self._is_cancelled = False
        self._task = asyncio.create_task(call, name=name)
        self._task.add_done_callback(self._note_end)

    async def cancel(self) -> None:
        """Returns when it has ended."""
        self._is_cancelled = True
        while not self._task.done():  # a publish of the NATS client swallows a cancellation that meets it while it flushes
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_INTERVAL_S)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not self._is_cancelled:
            self._on_ended(ended_task(self._name, asyncio.CancelledError() if task.cancelled() else task.exception()))
