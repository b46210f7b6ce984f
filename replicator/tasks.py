"""Tasks that live and end together, and work that is repeated.

``asyncio.TaskGroup`` cancels each task once. Before Python 3.12 ``asyncio.wait_for``, which nats-py uses for requests,
swallows a cancellation that comes together with the answer; the task then runs forever and the group waits for it. So
tasks are cancelled here until they have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process.defect import ended_task

_CANCEL_INTERVAL_S = 0.1

log = telemetry.logger(__name__)


async def run_until_first(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs ``calls`` together until one of them returns or raises; then ends the others and does the same.

    When several have raised, a PgsluiceError comes before any other, since it has a remedy.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(tasks)
    _raise_error_of(done)


async def run_until_all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs ``calls`` together until all have returned or one raises; then ends the others and does the same."""
    pending = tasks = {asyncio.ensure_future(call) for call in calls}
    try:
        while pending and not any(map(_error_of, tasks - pending)):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(pending)
    _raise_error_of(tasks - pending)


def _raise_error_of(ended: Iterable[asyncio.Future[Any]]) -> None:
    """Raises the error of an ended task; returns when none has failed."""
    errors = [error for task in ended if (error := _error_of(task)) is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, PgsluiceError)), errors[0])


def _error_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Returns the error that ended it. An unrequested cancellation is an error too: a call of the NATS client ends so
    when its connection is closed, and a waiter for a task's exception would not get it."""
    return ended_task("a part of the replicator", asyncio.CancelledError()) if task.cancelled() else task.exception()


async def lasting(name: str, call: Coroutine[Any, Any, None]) -> None:
    """Runs ``call``, which must continue until it is cancelled. Raises its error if it is a PgsluiceError, and else
    TaskEndedError, however it ends: without it the process would only seem alive."""
    error: BaseException | None = None
    try:
        await call
    except PgsluiceError:
        raise
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        error = cancelled
    except Exception as defect:  # noqa: BLE001  it is told by its place
        error = defect
    raise ended_task(name, error)


async def repeat(call: Callable[[], Awaitable[object]], interval_s: float, failure: str) -> None:
    """Awaits ``call`` again and again, with ``interval_s`` between, until it is cancelled. A TransientError is logged as
    ``failure``, and the next call tries again."""
    while True:
        try:
            await call()
        except TransientError as error:
            log.warning(failure, reason=str(error))
        await asyncio.sleep(interval_s)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Returns when every task has ended; their errors are dropped, since nothing waits for them any more."""
    every = set(tasks)
    pending = {task for task in every if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_INTERVAL_S)
    for task in every:
        if not task.cancelled():
            task.exception()  # or asyncio would report it as never retrieved
