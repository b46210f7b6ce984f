"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


LONGEST_S = 120.0
"""Generous: a busy machine is slow, not wrong, and what is there at once is not waited for."""
FIRST_INTERVAL_S, LONGEST_INTERVAL_S = 0.01, 0.1


class DeadlineError(AssertionError):
    """What was waited for did not happen in time."""


def _intervals(interval_s: float | None) -> Iterator[float]:
    """A look costs a server and this process a millisecond or more, and a run has some ten thousands of them."""
    if interval_s is not None:
        yield from itertools.repeat(interval_s)
    interval_s = FIRST_INTERVAL_S
    while True:
        yield interval_s
        interval_s = min(interval_s * 1.2, LONGEST_INTERVAL_S)


def wait_until(
    condition: Callable[[], T | None],
    *,
    deadline_s: float = LONGEST_S,
    what: str | Callable[[], str] = "the condition",
    interval_s: float | None = None,
) -> T:
    """Calls ``condition`` until it returns something true, and returns that; raises DeadlineError after ``deadline_s``. It is
    called each ``interval_s``, or more seldom the longer it takes. ``what`` may be found out at the end."""
    end = time.monotonic() + deadline_s
    intervals = _intervals(interval_s)
    while not (result := condition()):
        if time.monotonic() >= end:
            raise DeadlineError(f"{what() if callable(what) else what}: not within {deadline_s:g} s")
        time.sleep(next(intervals))
    return result


async def wait_until_async(
    condition: Callable[[], Awaitable[T]],
    *,
    deadline_s: float = LONGEST_S,
    what: str = "the condition",
    interval_s: float | None = None,
) -> T:
    """``wait_until`` for a condition that is a coroutine function."""
    end = time.monotonic() + deadline_s
    intervals = _intervals(interval_s)
    while not (result := await condition()):
        if time.monotonic() >= end:
            raise DeadlineError(f"{what}: not within {deadline_s:g} s")
        await asyncio.sleep(next(intervals))
    return result


async def wait_on_loop(condition: Callable[[], T], *, deadline_s: float = LONGEST_S, what: str = "the condition") -> T:
    """``wait_until`` for a plain condition, while the running loop goes on with its other tasks."""

    async def ask() -> T:
        return condition()

    return await wait_until_async(ask, deadline_s=deadline_s, what=what)
