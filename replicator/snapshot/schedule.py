"""Schedules the ranges of a copy, and carries the schedule out.

Largest tables first, since what is left at the end cannot be spread; no table has more than its share of the tasks;
small ranges travel together, since a Spark job costs tens of milliseconds whatever it does. Ranges that were begun come
before all others, since the stream keeps messages of it (``stream_share``) until it is finished.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Protocol, assert_never

from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome, RangeRequest, RangeStatus
from pgsluice.replicator.snapshot.held_ranges import HeldRanges, Range
from pgsluice.replicator.snapshot.stream_share import MOST_RANGES, Room
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, PgsluiceError, SnapshotGoneError, TerminalError, TransientError
from pgsluice.shared.process.retrying import Pauses

SMALL_SHARE = 8  # ranges that together have less than an eighth of the range size travel in one task

ASK_AGAIN = "run 'pgsluice tables retry' while the group streams, or start with --retry-errored"

MOST_FAILURES = 3  # of one range; then its table is errored
NO_UNREADABLE = 0

log = telemetry.logger(__name__)

Job = Callable[[Sequence[RangeRequest]], list[RangeOutcome]]
"""Copies ranges and gives each one's outcome, in their order; blocks."""


class RangeProgress(Protocol):
    """The outcomes of ranges, by the table's oid. A table is copied until it is noted as errored, or removed."""

    def is_copying(self, oid: int) -> bool: ...

    def note_done(self, outcome: RangeOutcome) -> None: ...

    def note_errored(self, oid: int, error: PgsluiceError) -> None: ...


class Schedule:
    """Chooses the ranges to copy next: pure. ``workers_per_table`` tasks copy one table at the same time,
    ``most_in_a_task`` ranges travel in one.

    While a range waits to be repeated nothing is begun: so no more than one task's ranges for each task are begun and
    not finished, however often they fail. Ranges with a partly stored body go first, for the same reason.
    """

    def __init__(
        self,
        tables: Iterable[Sequence[RangeRequest]],
        workers_per_table: int,
        range_bytes: int,
        most_in_a_task: int = MOST_RANGES,
    ) -> None:
        by_size = sorted(tables, key=lambda ranges: sum(request.pages.size_bytes for request in ranges), reverse=True)
        self._waiting = {ranges[0].pages.table_oid: deque(ranges) for ranges in by_size if ranges}
        self._begun: deque[RangeRequest] = deque()
        self._lone: deque[RangeRequest] = deque()
        self._runs_alone = False
        self._tasks = dict.fromkeys(self._waiting, 0)
        self._workers_per_table = workers_per_table
        self._small_bytes = range_bytes // SMALL_SHARE
        self._most_in_a_task = most_in_a_task

    @property
    def is_finished(self) -> bool:
        is_waiting = self._begun or self._lone or any(self._waiting.values())
        return not is_waiting and not any(self._tasks.values())

    def take(self) -> list[RangeRequest]:
        """Returns the ranges for one task; empty when there is nothing for another task now. Release them afterwards."""
        taken = self._next()
        for oid in _oids(taken):
            self._tasks[oid] += 1
        return taken

    def _next(self) -> list[RangeRequest]:
        if self._runs_alone:
            return []
        if self._begun:
            return [self._begun.popleft()] if self._has_room(self._begun[0].pages.table_oid) else []
        if self._lone:
            self._runs_alone = not any(self._tasks.values())
            return [self._lone.popleft()] if self._runs_alone else []
        return self._unbegun()

    def _unbegun(self) -> list[RangeRequest]:
        taken: list[RangeRequest] = []
        room = self._small_bytes
        for oid, waiting in self._waiting.items():
            if not waiting or not self._has_room(oid):
                continue
            while waiting and len(taken) < self._most_in_a_task and (not taken or waiting[0].pages.size_bytes <= room):
                room -= waiting[0].pages.size_bytes
                taken.append(waiting.popleft())
            if room <= 0 or len(taken) == self._most_in_a_task:
                break
        return taken if len(taken) == 1 else [replace(request, room=Room.MESSAGE) for request in taken]

    def _has_room(self, oid: int) -> bool:
        return self._tasks[oid] < self._workers_per_table

    def release(self, taken: Sequence[RangeRequest]) -> None:
        """Releases ranges whose task has ended, however it ended."""
        self._runs_alone = False
        for oid in _oids(taken):
            self._tasks[oid] -= 1

    def repeat(self, request: RangeRequest) -> None:
        """Queues a range again, as the first one if a body of it may be stored in part; in a separate task."""
        match request.room:
            case Room.MESSAGE:
                self._begun.append(replace(request, room=Room.SHARE))
            case Room.SHARE:
                self._begun.appendleft(request)
            case Room.STREAM:
                self._lone.appendleft(request)
            case unreachable:
                assert_never(unreachable)

    def give_room(self, request: RangeRequest) -> None:
        """Queues a range again, with more room for its bodies."""
        match request.room:
            case Room.MESSAGE:
                self._begun.append(replace(request, room=Room.SHARE))
            case Room.SHARE | Room.STREAM:
                self._lone.append(replace(request, room=Room.STREAM))
            case unreachable:
                assert_never(unreachable)

    def drop(self, oid: int) -> list[RangeRequest]:
        """Stops taking ranges of the table. Returns begun ranges that wait."""
        self._waiting[oid].clear()
        dropped = [request for request in (*self._begun, *self._lone) if request.pages.table_oid == oid]
        self._begun = deque(request for request in self._begun if request not in dropped)
        self._lone = deque(request for request in self._lone if request not in dropped)
        return dropped


class ScheduleRun:
    """Carries a schedule out: ranges become Spark jobs, outcomes become notes in the tables' progress.

    Runs up to ``tasks`` jobs at a time, in ``threads``. ``rewritten`` holds the oids of tables that need another
    snapshot, ``held`` gets the current ranges. A table is errored if one of its ranges fails ``most_failures`` times;
    ``ask_again`` tells users how to retry it.

    Ranges on whose rows a query fails, or takes too long ``most_timeouts`` times, are ``unreadable``: while they are no
    more than ``most_unreadable`` the others are copied nevertheless. They stay current.
    """

    def __init__(
        self,
        schedule: Schedule,
        job: Job,
        tasks: int,
        threads: Executor,
        progress: RangeProgress,
        pauses: Pauses,
        held: HeldRanges,
        most_failures: int = MOST_FAILURES,
        ask_again: str = ASK_AGAIN,
        most_unreadable: int = NO_UNREADABLE,
        most_timeouts: int = MOST_FAILURES,
    ) -> None:
        self._schedule = schedule
        self._job = job
        self._tasks = tasks
        self._threads = threads
        self._progress = progress
        self._pauses = pauses
        self._attempts: Counter[Range] = Counter()
        self._failures: Counter[Range] = Counter()
        self._held = held
        self._most_failures = most_failures
        self._ask_again = ask_again
        self._most_unreadable = most_unreadable
        self._most_timeouts = most_timeouts
        self._abandoned: set[int] = set()
        self.rewritten: set[int] = set()
        self.unreadable: list[RangeOutcome] = []

    async def run(self) -> None:
        """Returns when no range is left to copy. Raises SnapshotGoneError; what jobs that still run then come to is dropped."""
        running: dict[asyncio.Future[list[RangeOutcome]], list[RangeRequest]] = {}
        try:
            await self._run(running)
        finally:
            await cancel(running)

    async def _run(self, running: dict[asyncio.Future[list[RangeOutcome]], list[RangeRequest]]) -> None:
        while True:
            while len(running) < self._tasks and (taken := self._schedule.take()):
                self._held.hold(map(_key, taken))
                running[asyncio.ensure_future(self._run_job(taken))] = taken
            if not running:
                return
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for job in ended:
                taken = running.pop(job)
                self._schedule.release(taken)
                for request, outcome in zip(taken, job.result(), strict=True):
                    self._note(request, outcome)

    async def _run_job(self, ranges: list[RangeRequest]) -> list[RangeOutcome]:
        """Runs a job, after a pause if it was tried before; its place among the tasks stays taken meanwhile."""
        attempts = max(self._attempts[_key(request)] for request in ranges)
        if attempts:
            await asyncio.sleep(self._pauses.after(attempts))
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._job, ranges)

    def _note(self, request: RangeRequest, outcome: RangeOutcome) -> None:
        # no cause: the task did not report one
        oid, error = request.pages.table_oid, outcome.error or TransientError("a range was not copied")
        if not self._progress.is_copying(oid) and oid not in self._abandoned:
            self._abandon(oid)  # it has left, or will be copied from another snapshot
        if outcome.status is RangeStatus.DONE:
            self._progress.note_done(outcome)
            self._held.finish(_key(request), outcome.last_sequence, is_whole=outcome.is_whole)
            return
        if outcome.status is RangeStatus.SNAPSHOT_GONE:
            raise error if isinstance(error, SnapshotGoneError) else SnapshotGoneError(error.fact, error.remedy)
        if oid not in self._abandoned and self._stays_in_hand(request, outcome, error):
            return
        self._held.release(_key(request))

    def _stays_in_hand(self, request: RangeRequest, outcome: RangeOutcome, error: PgsluiceError) -> bool:
        """Returns False when its table is errored, for this snapshot or until a user retries it."""
        oid, status = request.pages.table_oid, outcome.status
        if status is RangeStatus.NEEDS_ROOM:
            self._schedule.give_room(request)
        elif status is RangeStatus.REWRITTEN:
            log.warning("table was altered while it was copied", table=request.pages.name, reason=str(error))
            self._abandon(oid)
            self.rewritten.add(oid)
        elif self._may_repeat(request, status):
            self._repeat(request, error)
        elif not self._is_set_aside(outcome):
            self._abandon(oid)
            remedy = f"{error.remedy}; then {self._ask_again}"
            self._progress.note_errored(oid, _given_up(status, error, remedy))
        return oid not in self._abandoned

    def _may_repeat(self, request: RangeRequest, status: RangeStatus) -> bool:
        if status in (RangeStatus.REFUSED, RangeStatus.UNREADABLE):
            return False
        self._failures[_key(request)] += status in (RangeStatus.FAILED, RangeStatus.TIMED_OUT)
        most = self._most_timeouts if status is RangeStatus.TIMED_OUT else self._most_failures
        return self._failures[_key(request)] < most

    def _is_set_aside(self, outcome: RangeOutcome) -> bool:
        if outcome.status not in (RangeStatus.UNREADABLE, RangeStatus.TIMED_OUT) or not self._most_unreadable:
            return False
        self.unreadable.append(outcome)
        return len(self.unreadable) <= self._most_unreadable

    def _repeat(self, request: RangeRequest, error: PgsluiceError) -> None:
        self._attempts[_key(request)] += 1
        log.warning("a range is copied again", table=request.pages.name, range=request.pages.number, reason=str(error))
        self._schedule.repeat(request)

    def _abandon(self, oid: int) -> None:
        self._abandoned.add(oid)
        for request in self._schedule.drop(oid):
            self._held.release(_key(request))


def _given_up(status: RangeStatus, error: PgsluiceError, remedy: str) -> PgsluiceError:
    """Returns the error of a table without further attempts; a refusal by the source is not transient."""
    if status in (RangeStatus.REFUSED, RangeStatus.UNREADABLE):
        return TerminalError(error.fact, remedy)
    return TransientError(error.fact, remedy, error.cause if isinstance(error, TransientError) else Cause.OTHER)


def _oids(ranges: Iterable[RangeRequest]) -> set[int]:
    return {request.pages.table_oid for request in ranges}


def _key(request: RangeRequest) -> Range:
    return request.pages.table_oid, request.pages.number
