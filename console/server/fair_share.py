"""Fair shares of memory and processors: the work that each principal may have done at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class FairShare:
    """Lets ``at_once`` principals work at the same time, each of them once: a principal that asks for much waits for itself
    only."""

    def __init__(self, at_once: int) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._own = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def of(self, token: str) -> AsyncIterator[None]:
        """Holds the share of the holder of this token until the block ends."""
        own = self._own.setdefault(token, asyncio.Lock())
        async with own, self._all:
            yield
