"""A run whose source or broker is away for a moment is taken up, as often as its pipeline allows."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.process.retrying import Pauses

PAUSES = Pauses(1.0, 4.0)

T = TypeVar("T")

log = telemetry.logger(__name__)


async def tried(pipeline: Pipeline, run: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of ``run``, called again after each of at most ``retries`` transient failures. Raises its
    error; at once if another run of the pipeline reads, whose end is unknown."""
    for failures in itertools.count(1):
        try:
            return await run()
        except TransientError as error:
            if error.cause is Cause.LOCK or failures > pipeline.retries:
                raise
            pause_s = round(PAUSES.after(failures), 1)
            log.warning("the run ended early and is taken up", pipeline=pipeline.name, reason=str(error), pause_s=pause_s)
            await asyncio.sleep(pause_s)
    raise AssertionError("an endless count ended")
