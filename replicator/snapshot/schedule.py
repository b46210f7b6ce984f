"""Which ranges are copied next, and carrying that out.

Largest tables first, since what is left at the end cannot be spread; no table has more than its share of the tasks; small
ranges travel together, since a Spark job costs tens of milliseconds whatever it does.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome, RangeRequest, RangeStatus
from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, SnapshotGoneError, TerminalError, TransientError
from pgsluice.shared.process.retrying import COPIED_RANGE

SMALL_SHARE = 8  # ranges that together have less than an eighth of the range size travel in one task
MOST_IN_A_TASK = 32

ASK_AGAIN = "say 'pgsluice tables retry' while the group streams, or start with --retry-errored"

MOST_FAILURES = 3  # of one range; then its table is given up

log = telemetry.logger(__name__)

Range = tuple[int, int]
"""A page range, by table oid and number."""

Job = Callable[[Sequence[RangeRequest]], list[RangeOutcome]]
"""Copies ranges and gives each one's outcome, in their order; blocks."""


class Schedule:
    """Which ranges are copied next: pure. ``workers_per_table`` tasks copy one table at the same time."""

    def __init__(self, tables: Iterable[Sequence[RangeRequest]], workers_per_table: int, range_bytes: int) -> None:
        by_size = sorted(tables, key=lambda ranges: sum(request.pages.size_bytes for request in ranges), reverse=True)
        self._waiting = {ranges[0].pages.table_oid: deque(ranges) for ranges in by_size if ranges}
        self._tasks = dict.fromkeys(self._waiting, 0)
        self._workers_per_table = workers_per_table
        self._small_bytes = range_bytes // SMALL_SHARE

    @property
    def is_finished(self) -> bool:
        return not any(self._waiting.values()) and not any(self._tasks.values())

    def take(self) -> list[RangeRequest]:
        """What one task copies next; empty when there is nothing for another task now. To be released."""
        taken: list[RangeRequest] = []
        room = self._small_bytes
        for oid, waiting in self._waiting.items():
            if not waiting or self._tasks[oid] >= self._workers_per_table:
                continue
            while waiting and len(taken) < MOST_IN_A_TASK and (not taken or waiting[0].pages.size_bytes <= room):
                room -= waiting[0].pages.size_bytes
                taken.append(waiting.popleft())
            if room <= 0 or len(taken) == MOST_IN_A_TASK:
                break
        for oid in _oids(taken):
            self._tasks[oid] += 1
        return taken

    def release(self, taken: Sequence[RangeRequest]) -> None:
        """The task that copied them has ended, however."""
        for oid in _oids(taken):
            self._tasks[oid] -= 1

    def repeat(self, request: RangeRequest) -> None:
        """It is to be taken again, after the others of its table."""
        self._waiting[request.pages.table_oid].append(request)

    def drop(self, oid: int) -> None:
        """No further range of the table is taken."""
        self._waiting[oid].clear()


@dataclass(slots=True)
class _Place:
    """Messages up to ``sequence`` belong to finished ranges once ``open_ranges`` is empty."""

    sequence: int
    open_ranges: frozenset[Range]


class SettledRanges:
    """Up to where every message of the snapshot stream belongs to finished ranges: pure.

    A range that is not finished needs its newest message, for a task that takes it up looks there how far it has come; and a
    body in chunks needs all of them until its last one is applied. So it is noted where the stream has come whenever a range is
    finished, together with the ranges that are open then. Once all of these are finished too, everything before that place
    belongs to finished ranges.
    """

    def __init__(self) -> None:
        self._unsettled: list[_Place] = []
        self._settled: deque[tuple[int, int]] = deque()
        """The sequence up to which messages may go, and the one that is to be applied before."""
        self._newest = 0

    def note(self, last_sequence: int, open_ranges: frozenset[Range]) -> None:
        """A range is finished, its last message stored at ``last_sequence``; these ranges were begun and are not finished."""
        if last_sequence > self._newest:
            self._newest = last_sequence
            self._unsettled.append(_Place(last_sequence, open_ranges))
        for place in self._unsettled:
            place.open_ranges &= open_ranges
        while self._unsettled and not self._unsettled[0].open_ranges:
            self._settled.append((self._unsettled.pop(0).sequence, self._newest))

    def removable(self, applied: int) -> int:
        """The newest sequence up to which all may go when ``applied`` is; 0 when nothing may. Earlier ones are forgotten."""
        sequence = 0
        while self._settled and self._settled[0][1] <= applied:
            sequence, _ = self._settled.popleft()
        return sequence


class ScheduleRun:
    """Carries a schedule out: ranges become Spark jobs, outcomes become notes in the tables' progress.

    Runs up to ``tasks`` jobs at a time, in ``threads``. ``rewritten`` holds the oids of tables that need another snapshot,
    ``settled`` knows which messages belong to finished ranges.
    """

    def __init__(self, schedule: Schedule, job: Job, tasks: int, threads: Executor, progress: TableProgress) -> None:
        self._schedule = schedule
        self._job = job
        self._tasks = tasks
        self._threads = threads
        self._progress = progress
        self._attempts: Counter[Range] = Counter()
        self._failures: Counter[Range] = Counter()
        self._open: set[Range] = set()  # given to a task, and neither stored nor given up
        self._abandoned: set[int] = set()
        self.rewritten: set[int] = set()
        self.settled = SettledRanges()

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
                self._open.update(map(_key, taken))
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
        """What was tried before waits first; its place among the tasks stays taken meanwhile."""
        attempts = max(self._attempts[_key(request)] for request in ranges)
        if attempts:
            await asyncio.sleep(COPIED_RANGE.after(attempts))
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._job, ranges)

    def _note(self, request: RangeRequest, outcome: RangeOutcome) -> None:
        oid, error = request.pages.table_oid, outcome.error or TransientError("a range was not copied")
        self._open.discard(_key(request))
        if not self._progress.is_copying(oid) and oid not in self._abandoned:
            self._abandon(oid)  # it has left, or is to be copied from another snapshot
        if outcome.status is RangeStatus.DONE:
            self._progress.note_done(outcome)
            self.settled.note(outcome.last_sequence, frozenset(self._open))
            return
        if outcome.status is RangeStatus.SNAPSHOT_GONE:
            raise error if isinstance(error, SnapshotGoneError) else SnapshotGoneError(error.fact, error.remedy)
        if oid in self._abandoned:
            return
        if outcome.status is RangeStatus.REWRITTEN:
            log.warning("table was altered while it was copied", table=request.pages.name, reason=str(error))
            self._abandon(oid)
            self.rewritten.add(oid)
        elif self._may_repeat(request, outcome.status):
            self._repeat(request, error)
        else:
            self._abandon(oid)
            remedy = f"{error.remedy}; then {ASK_AGAIN}"
            passing = outcome.status is not RangeStatus.REFUSED
            self._progress.note_errored(oid, TransientError(error.fact, remedy) if passing else TerminalError(error.fact, remedy))

    def _may_repeat(self, request: RangeRequest, status: RangeStatus) -> bool:
        self._failures[_key(request)] += status is RangeStatus.FAILED
        return status is not RangeStatus.REFUSED and self._failures[_key(request)] < MOST_FAILURES

    def _repeat(self, request: RangeRequest, error: PgsluiceError) -> None:
        self._attempts[_key(request)] += 1
        self._open.add(_key(request))
        log.warning("a range is copied again", table=request.pages.name, range=request.pages.number, reason=str(error))
        self._schedule.repeat(request)

    def _abandon(self, oid: int) -> None:
        self._abandoned.add(oid)
        self._open = {key for key in self._open if key[0] != oid}  # nobody takes them up again under this snapshot
        self._schedule.drop(oid)


def _oids(ranges: Iterable[RangeRequest]) -> set[int]:
    return {request.pages.table_oid for request in ranges}


def _key(request: RangeRequest) -> Range:
    return request.pages.table_oid, request.pages.number
