"""One pipeline's executor: has its ticks become requests, and carries requests out, one after the other.

A run is ``pgsluice run`` as a child, which dies with us. What became of it is read from its record, which it writes itself: so an
executor that comes after one which was killed knows as much. What ended in a way that may pass is taken up after a pause that
grows; nothing is forgotten, as the request stays taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgsluice.console.executor.ticks import advanced
from pgsluice.console.processes.child_process import ChildProcess, Command
from pgsluice.console.processes.log_file import last_sentence
from pgsluice.console.processes.supervised_process import LAST_LINES, PAUSES, describe_exit, may_start_again
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import Bucket
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, RunState, load_pipeline
from pgsluice.shared.pipelines.run_requests import (
    RUN_REQUESTS,
    RequestState,
    RunRequest,
    RunRequests,
    end_cancelled,
)
from pgsluice.shared.pipelines.run_schedule import RunSchedule
from pgsluice.shared.process.retrying import Backoff

END_DEADLINE_S = 15.0
"""Time for a run to note where it ends, when its executor does."""
_INTERRUPTED = 130

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a child; ``sentence`` is its last message."""

    request: str
    exit_code: int
    sentence: str


def settled(request: RunRequest, run: RunRecord | None, ended: Ended | None) -> RunRequest | None:
    """Returns the closed request; None while its run must be begun, or taken up. ``run`` is the newest for it,
    ``ended`` is None if its process's end was not observed."""
    if run is not None and not run.state.is_unfinished:
        return replace(request, state=RequestState.DONE, run=run.number)
    is_paused = run is not None and run.state is RunState.PAUSED
    if ended is None or is_paused or ended.exit_code == _INTERRUPTED or may_start_again(ended.exit_code):
        return None
    if run is None:
        return replace(request, state=RequestState.REFUSED, reason=ended.sentence)
    return replace(request, state=RequestState.DONE, run=run.number, reason=ended.sentence)


class RunExecutor:
    """The executor of one pipeline. ``command`` carries a request out."""

    def __init__(self, pipeline: str, bucket: Bucket, command: Callable[[RunRequest], Command]) -> None:
        self._pipeline = pipeline
        self._bucket = bucket
        self._command = command
        self._child: ChildProcess | None = None
        self._waiter: asyncio.Task[None] | None = None
        self._ended: Ended | None = None
        self._backoff = Backoff(PAUSES)
        self._start_at = 0.0
        """Earliest start, by the monotonic clock."""

    async def look(self, schedule: RunSchedule | None) -> None:
        """Checks for work; called periodically by the holder of the lease only. Raises TransientError when NATS does
        not answer, OSError when no process can be started."""
        requests = await self._with_ticks(schedule)
        if self._child is not None:
            return
        await end_cancelled(self._bucket)
        record = await load_pipeline(self._bucket)
        for request in requests.open:
            requests = await self._settle(requests, request, record)
        self._ended = None
        taken = sorted(requests.open, key=lambda each: each.state is not RequestState.TAKEN)
        if taken and not requests.paused and time.monotonic() >= self._start_at:
            await self._start(taken[0])

    async def _with_ticks(self, schedule: RunSchedule | None) -> RunRequests:
        known, now = await RUN_REQUESTS.load(self._bucket), datetime.now(UTC)
        if advanced(known, schedule, now) is known:
            return known
        return (await RUN_REQUESTS.change(self._bucket, lambda newest: advanced(newest, schedule, now))).value

    async def _settle(self, requests: RunRequests, request: RunRequest, record: PipelineRecord | None) -> RunRequests:
        """Settles a request whose process ended, or which an earlier executor began."""
        if request.state is not RequestState.TAKEN:
            return requests
        run = None if record is None else record.run_of(request.id)
        ended = self._ended if self._ended is not None and self._ended.request == request.id else None
        now_settled = settled(request, run, ended)
        if now_settled is not None:
            self._backoff.note_success()
            log.info("a request is settled", pipeline=self._pipeline, request=request.id, run=now_settled.run)
            return (await RUN_REQUESTS.change(self._bucket, lambda known: known.with_request(now_settled))).value
        if ended is not None and not requests.paused:
            pause_s = self._backoff.next_pause_s()
            self._start_at = time.monotonic() + pause_s
            log.warning(
                "a run ended and is taken up again",
                pipeline=self._pipeline,
                ended=describe_exit(ended.exit_code),
                reason=ended.sentence,
                pause_s=round(pause_s, 1),
            )
        return requests

    async def _start(self, request: RunRequest) -> None:
        taken = replace(request, state=RequestState.TAKEN)
        known = await RUN_REQUESTS.change(self._bucket, lambda known: known if known.paused else known.with_request(taken))
        if known.value.paused:
            return
        command = self._command(taken)
        command.log.rotate()
        child = await ChildProcess.start(command)
        self._child = child
        self._waiter = asyncio.create_task(self._wait(child, taken))
        log.info("a run was started", pipeline=self._pipeline, request=request.id, by=request.by, pid=child.pid)

    async def _wait(self, child: ChildProcess, request: RunRequest) -> None:
        exit_code = await child.wait()
        self._ended = Ended(request.id, exit_code, last_sentence(child.last_lines(LAST_LINES)))
        self._child = None

    async def leave(self) -> None:
        """Ends the current run, which notes where it is; the next executor takes it up."""
        child, waiter = self._child, self._waiter
        if child is not None and waiter is not None:
            child.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiter), END_DEADLINE_S)
            child.kill()
            await waiter
