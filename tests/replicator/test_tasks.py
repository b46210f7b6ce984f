"""Tasks that live and end together."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.replicator.tasks import cancel, run_until_first
from pgsluice.shared.errors import TerminalError


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    raise error


async def test_the_first_that_returns_ends_the_others() -> None:
    await asyncio.wait_for(run_until_first([forever(), asyncio.sleep(0), forever()]), 5)


async def test_an_error_of_ours_comes_before_another() -> None:
    with pytest.raises(TerminalError):
        await run_until_first([forever(), fail(ValueError()), fail(TerminalError("ours"))])
    with pytest.raises(ValueError, match="a defect"):
        await run_until_first([forever(), fail(ValueError("a defect"))])


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await forever()
            except asyncio.CancelledError:
                swallowed += 1
        await forever()

    task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel([task]), 5)
    assert (task.cancelled(), swallowed) == (True, 2)
