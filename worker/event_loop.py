"""One asyncio loop on a thread of its own, for code that is called synchronously (sinks, the driver, Spark tasks).

The loop keeps running between calls, so that a NATS connection made on it answers pings and reconnects by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

CANCEL_DEADLINE_S = 5.0

T = TypeVar("T")


class EventLoopThread:
    """A daemon thread; ``close`` ends it, and the process does not wait for it otherwise."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """What ``coroutine`` returns or raises; TimeoutError after ``timeout_s``, and the coroutine is cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what still runs, stops the loop and waits for its thread."""
        self.run(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_others() -> None:
    """A call that was given up may still have a connection to close."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_DEADLINE_S)
