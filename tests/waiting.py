"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


LONGEST_S = 120.0
"""Generous: a busy machine is slow, not wrong, and what is there at once is not waited for."""


class DeadlineError(AssertionError):
    """What was waited for did not happen in time."""


def wait_until(
    condition: Callable[[], T | None], *, deadline_s: float = LONGEST_S, what: str = "the condition", interval_s: float = 0.02
) -> T:
    """Calls ``condition`` until it returns something true, and returns that; raises DeadlineError after ``deadline_s``."""
    end = time.monotonic() + deadline_s
    while not (result := condition()):
        if time.monotonic() >= end:
            raise DeadlineError(f"{what}: not within {deadline_s:g} s")
        time.sleep(interval_s)
    return result


async def wait_until_async(
    condition: Callable[[], Awaitable[T]], *, deadline_s: float = LONGEST_S, what: str = "the condition", interval_s: float = 0.02
) -> T:
    """``wait_until`` for a condition that is a coroutine function."""
    end = time.monotonic() + deadline_s
    while not (result := await condition()):
        if time.monotonic() >= end:
            raise DeadlineError(f"{what}: not within {deadline_s:g} s")
        await asyncio.sleep(interval_s)
    return result


async def wait_on_loop(condition: Callable[[], T], *, deadline_s: float = LONGEST_S, what: str = "the condition") -> T:
    """``wait_until`` for a plain condition, while the running loop goes on with its other tasks."""

    async def ask() -> T:
        return condition()

    return await wait_until_async(ask, deadline_s=deadline_s, what=what)
