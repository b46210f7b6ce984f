"""Who may do at the same time what takes memory and processors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class FairShare:
    """``at_once`` may, and each of them once: who asks for much waits for themself."""

    def __init__(self, at_once: int) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._own = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def of(self, token: str) -> AsyncIterator[None]:
        """The share of whoever has this token, held until the block ends."""
        own = self._own.setdefault(token, asyncio.Lock())
        async with own, self._all:
            yield
