"""One unit of one group on this machine: checked once a second, and started if its process should run and does not."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from typing import assert_never

from pgsluice.console.processes.child_process import ChildProcess
from pgsluice.console.processes.supervised_process import PAUSES, describe_exit
from pgsluice.console.runner.group_units import WantedUnit
from pgsluice.console.runner.unit_place import UnitPlace
from pgsluice.console.runner.unit_wish import RunnerStep, StartedWith, UnitCase, next_step
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.unit_records import NOTHING_DESIRED, ProcessRecord, desired_wish, process_key
from pgsluice.shared.process.retrying import Backoff

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class UnitName:
    group: str
    unit: str


class UnitRunner:
    """``look`` is called periodically. Processes that it finds running were started by an earlier server."""

    def __init__(self, name: UnitName, place: UnitPlace) -> None:
        self._name = name
        self._place = place
        self._child: ChildProcess | None = None
        self._waiter: asyncio.Task[None] | None = None
        self._backoff = Backoff(PAUSES)
        self._start_at = 0.0
        """Earliest start, by the monotonic clock."""
        self._renewed: StartedWith | None = None
        """Start parameters of the process that was asked to end."""

    async def look(self, wanted: WantedUnit | None, bucket: StateBucket) -> None:
        """``wanted`` is unset for a unit that no document asks for. Raises TransientError when NATS does not answer,
        OSError when no process can be started."""
        case = await self._case(wanted, bucket)
        match next_step(case):
            case RunnerStep.LEAVE:
                return
            case RunnerStep.RENEW:
                self._renew(case)
            case RunnerStep.START:
                self._backoff.note_success()
                await self._start(wanted, case.now)
            case RunnerStep.AGAIN:
                await self._start_again(wanted, case)
            case unreachable:
                assert_never(unreachable)

    async def _case(self, wanted: WantedUnit | None, bucket: StateBucket) -> UnitCase:
        desired, process = Entry(NOTHING_DESIRED, 0), None
        if await bucket.exists():  # a first start makes it
            desired = await desired_wish(self._name.unit).read(bucket)
            entry = await bucket.read(process_key(self._name.unit), ProcessRecord)
            process = None if entry is None else entry.value
        last, is_running = self._place.last, self._child is not None or self._place.is_running
        is_told = process is not None and last is not None and process.pid == last.pid
        exit_code = None if last is None else last.exit_code
        if exit_code is None and is_told and process is not None:
            exit_code = process.exit_code
        return UnitCase(
            wanted=wanted is not None,
            desired=desired.value.state,
            now=StartedWith(0 if wanted is None else wanted.revision, desired.revision),
            is_running=is_running,
            started=None if last is None else last.started,
            exit_code=exit_code,
            is_finished=is_told and process is not None and process.is_finished,
        )

    async def _start_again(self, wanted: WantedUnit | None, case: UnitCase) -> None:
        now = time.monotonic()
        if self._start_at == 0.0:
            pause_s = self._backoff.next_pause_s()
            self._start_at = now + pause_s
            ended = "without a report" if case.exit_code is None else describe_exit(case.exit_code)
            log.warning(
                "a process ended and is started again",
                group=self._name.group,
                unit=self._name.unit,
                ended=ended,
                pause_s=round(pause_s, 1),
            )
        if now >= self._start_at:
            await self._start(wanted, case.now)

    async def _start(self, wanted: WantedUnit | None, started: StartedWith) -> None:
        assert wanted is not None
        lock = self._place.take()
        if lock is None:
            return
        try:
            self._place.log.rotate()
            command = wanted.command(self._place, lock)
            self._place.note_started(started)
            child = await ChildProcess.start(command)
        finally:
            os.close(lock)
        self._place.note_started(started, child.pid)
        self._child, self._start_at, self._renewed = child, 0.0, None
        self._waiter = asyncio.create_task(self._wait(child))
        log.info("a process was started", group=self._name.group, unit=self._name.unit, pid=child.pid)

    async def _wait(self, child: ChildProcess) -> None:
        exit_code = await child.wait()
        name = self._name
        log.info("a process ended", group=name.group, unit=name.unit, how=describe_exit(exit_code))
        try:
            self._place.note_ended(exit_code)
        except OSError as error:  # as when the disk is full: treated like an unobserved end
            log.warning("how a process ended cannot be noted", group=name.group, unit=name.unit, reason=error.strerror)
        self._child = None

    def _renew(self, case: UnitCase) -> None:
        """Renews, once for each process; it ends after its current work."""
        last = self._place.last
        if last is None or not last.pid or self._renewed == case.started:
            return
        self._renewed = case.started
        log.info("a process takes up another document", group=self._name.group, unit=self._name.unit, pid=last.pid)
        if self._child is not None:
            self._child.stop()
        elif self._place.is_running:  # its lock is held, so the number is still its own
            os.kill(last.pid, signal.SIGTERM)

    async def leave(self) -> None:
        """Leaves the process running."""
        if self._waiter is not None:
            self._waiter.cancel()
            await asyncio.wait({self._waiter})
