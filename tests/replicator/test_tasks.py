"""Tasks that live and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pgsluice.replicator.tasks import cancel, lasting, run_until_all, run_until_first
from pgsluice.shared.errors import TaskEndedError, TerminalError, TransientError


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    raise error


async def test_the_first_that_returns_ends_the_others() -> None:
    await asyncio.wait_for(run_until_first([forever(), asyncio.sleep(0), forever()]), 120)


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
    await asyncio.wait_for(cancel([task]), 120)
    assert (task.cancelled(), swallowed) == (True, 2)


async def nothing() -> None:
    return


async def fail_as_nobody_expected() -> None:
    raise ValueError("hunter2")


async def fail_by_cancellation() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("end", [nothing, fail_as_nobody_expected, fail_by_cancellation])
async def test_a_lasting_task_that_ends_in_any_way_ends_the_process(end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with pytest.raises(TaskEndedError, match="retention ended unexpectedly") as raised:
        await asyncio.wait_for(run_until_first([forever(), lasting("retention", end())]), 120)
    assert raised.value.exit_code == 75
    assert "hunter2" not in str(raised.value)


async def test_a_lasting_task_passes_errors_of_ours_and_its_own_cancellation() -> None:
    with pytest.raises(TransientError, match="ours"):
        await lasting("retention", fail(TransientError("ours")))
    task = asyncio.ensure_future(lasting("retention", forever()))
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel([task]), 120)
    assert task.cancelled()


async def test_a_task_that_somebody_else_cancelled_is_an_error_and_no_end_without_one() -> None:
    with pytest.raises(TaskEndedError):
        await asyncio.wait_for(run_until_first([forever(), fail_by_cancellation()]), 120)


@pytest.mark.parametrize("end", [fail_as_nobody_expected, fail_by_cancellation])
async def test_of_tasks_that_all_have_to_return_one_that_fails_ends_the_others(
    end: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    await asyncio.wait_for(run_until_all([nothing(), nothing()]), 120)
    with pytest.raises((TaskEndedError, ValueError)):
        await asyncio.wait_for(run_until_all([nothing(), forever(), end()]), 120)
