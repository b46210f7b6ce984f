"""Background tasks whose end is the end of the worker: none may die alone and leave a process that only looks alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shared.errors import TransientError

CANCEL_INTERVAL_S = 0.05

Ended = Callable[[BaseException], None]
"""Told why a task ended, on its event loop."""


class WatchedTask:
    """Runs ``call`` on the running event loop; ``on_ended`` is told when it ends in any way but by ``cancel``."""

    def __init__(self, name: str, call: Coroutine[Any, Any, None], on_ended: Ended) -> None:
        self._name = name
        self._on_ended = on_ended
        self._task = asyncio.create_task(call, name=name)
        self._task.add_done_callback(self._note_end)

    async def cancel(self) -> None:
        """Returns when it has ended."""
        while not self._task.done():  # a publish of the NATS client swallows a cancellation that meets it while it flushes
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_INTERVAL_S)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._on_ended(task.exception() or TransientError(f"{self._name} ended by itself", "start the worker again"))
