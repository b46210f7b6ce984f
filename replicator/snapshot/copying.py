"""Carrying out a schedule: ranges become Spark jobs, outcomes become notes in the table book."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from pgsluice.replicator.snapshot.orders import RangeOrder, RangeOutcome, Verdict
from pgsluice.replicator.snapshot.room import Borders, Range
from pgsluice.replicator.snapshot.schedule import Schedule
from pgsluice.replicator.snapshot.table_book import TableBook
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, SnapshotGoneError, TransientError

MOST_FAILURES = 3  # of one range; then its table is given up
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0

log = telemetry.logger(__name__)

Job = Callable[[Sequence[RangeOrder]], list[RangeOutcome]]
"""Copies ranges and gives each one's outcome, in their order; blocks."""


class Copying:
    """Runs up to ``tasks`` jobs at a time, in ``threads``. ``rewritten`` holds the oids of tables that need another snapshot,
    ``borders`` knows which messages belong to finished ranges."""

    def __init__(self, schedule: Schedule, job: Job, tasks: int, threads: Executor, book: TableBook) -> None:
        self._schedule = schedule
        self._job = job
        self._tasks = tasks
        self._threads = threads
        self._book = book
        self._attempts: Counter[Range] = Counter()
        self._failures: Counter[Range] = Counter()
        self._open: set[Range] = set()  # given to a task, and neither stored nor given up
        self._abandoned: set[int] = set()
        self.rewritten: set[int] = set()
        self.borders = Borders()

    async def run(self) -> None:
        """Returns when no range is left to copy. Raises SnapshotGoneError; what jobs that still run then come to is dropped."""
        running: dict[asyncio.Future[list[RangeOutcome]], list[RangeOrder]] = {}
        try:
            await self._run(running)
        finally:
            await cancel(running)

    async def _run(self, running: dict[asyncio.Future[list[RangeOutcome]], list[RangeOrder]]) -> None:
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
                for order, outcome in zip(taken, job.result(), strict=True):
                    self._note(order, outcome)

    async def _run_job(self, ranges: list[RangeOrder]) -> list[RangeOutcome]:
        """What was tried before waits first; its place among the tasks stays taken meanwhile."""
        attempts = max(self._attempts[_key(order)] for order in ranges)
        if attempts:
            await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** (attempts - 1), LONGEST_PAUSE_S))
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._job, ranges)

    def _note(self, order: RangeOrder, outcome: RangeOutcome) -> None:
        oid, error = order.pages.table_oid, outcome.error or TransientError("a range was not copied")
        self._open.discard(_key(order))
        if outcome.verdict is Verdict.DONE:
            self._book.note_done(outcome)
            self.borders.note(outcome.last_sequence, frozenset(self._open))
            return
        if outcome.verdict is Verdict.SNAPSHOT_GONE:
            raise error if isinstance(error, SnapshotGoneError) else SnapshotGoneError(error.fact, error.remedy)
        if oid in self._abandoned:
            return
        if outcome.verdict is Verdict.REWRITTEN:
            log.warning("table was altered while it was copied", table=order.pages.name, reason=str(error))
            self._abandon(oid)
            self.rewritten.add(oid)
        elif self._may_repeat(order, outcome.verdict):
            self._repeat(order, error)
        else:
            self._abandon(oid)
            remedy = f"{error.remedy}; then start the replicator with --retry-errored"
            self._book.note_errored(oid, TransientError(error.fact, remedy))

    def _may_repeat(self, order: RangeOrder, verdict: Verdict) -> bool:
        self._failures[_key(order)] += verdict is Verdict.FAILED
        return verdict is not Verdict.REFUSED and self._failures[_key(order)] < MOST_FAILURES

    def _repeat(self, order: RangeOrder, error: PgsluiceError) -> None:
        self._attempts[_key(order)] += 1
        self._open.add(_key(order))
        log.warning("a range is copied again", table=order.pages.name, range=order.pages.number, reason=str(error))
        self._schedule.repeat(order)

    def _abandon(self, oid: int) -> None:
        self._abandoned.add(oid)
        self._open = {key for key in self._open if key[0] != oid}  # nobody takes them up again under this snapshot
        self._schedule.drop(oid)


def _key(order: RangeOrder) -> Range:
    return order.pages.table_oid, order.pages.number
