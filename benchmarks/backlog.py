"""A backlog: work that was written at the source while nothing read. How fast does it reach the target?

All contestants and repetitions drain the same backlog of the same source, each from a slot of its own that existed before it,
into a target database of its own. Every measurement ends when the row that was written last, into a table of its own, is seen at
the target.

native          PostgreSQL's subscription, from ALTER SUBSCRIPTION … ENABLE.
replicator      alone, with an idle worker suspended: ``pgsluice replicator --until-lsn current``, from its log line "replicating"
                and from the start of its process, to the end of its process.
worker          alone: the suspended worker has applied changes before and is warm; from the moment it may go on, with everything
                in the stream.
both            the worker is warm and idle; from the replicator's log line, and from the start of its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from benchmarks import data
from benchmarks.data import TargetWatch
from benchmarks.group import DEADLINE_S, Group, finish, logged_at, stop
from benchmarks.measurement import NATIVE, Options, Run
from benchmarks.native import Subscription
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch, is_over, suspended
from benchmarks.servers import Servers, start_servers
from benchmarks.workload import Workload
from pgsluice.shared.wire.position import LSN
from tests.servers import Database, PgsluiceProcess
from tests.waiting import wait_until

REPLICATOR_ALONE, WORKER_ALONE, BOTH = "replicator alone", "worker alone", "both"
RATE = "changes_per_s"
RATE_FROM_START = "from_start_changes_per_s"

WARM_UP = "warm_up"
WARM_UP_ROWS = 50_000
WARM_UP_UPDATES = 5_000
MARKS = "marks"
"""A table whose rows mark, in commit order, the ends of the warm-up and of the backlog."""

WARM_UP_MARK, END_MARK = 1, 2

Beside = Callable[[PgsluiceProcess], AbstractContextManager[object]]


class Backlog:
    """One workload at a source database of its own, ``name``.

    Slots are made first (``subscription``, ``group``), then ``write`` is called, once, then the slots are drained. ``scenario``
    and ``label`` name the runs: the label follows the contestant's name.
    """

    def __init__(self, servers: Servers, scenario: str, workload: Workload, name: str = "backlog", label: str = "") -> None:
        self.servers = servers
        self.workload = workload
        self._scenario, self._name, self._label = scenario, name, label
        self.source = servers.source.create_database(name)
        self._warm_up_end: LSN | None = None
        self._create(self.source)

    def new_target(self, name: str) -> Database:
        """A database at the target, as the source is before the backlog."""
        target = self.servers.target.create_database(f"{self._name}_{name}")
        self._create(target)
        return target

    def _create(self, database: Database) -> None:
        data.create_table(database, WARM_UP)
        database.execute(f"CREATE TABLE {MARKS} (id integer PRIMARY KEY)")
        self.workload.create(database)

    def subscription(self, name: str) -> Subscription:
        """With its slot."""
        subscription = Subscription(f"{self._name}_{name}", self.source, (*self.workload.tables, MARKS))
        subscription.create_slot()
        return subscription

    def group(self, name: str, **keys: Any) -> Group:
        """With its slot. ``keys`` are of its configuration."""
        target = self.new_target(name)
        group = Group(target.dbname.replace("_", "-"), self.servers, self.source, target, **keys)
        group.publish_until()
        return group

    def write(self) -> None:
        """The warm-up and the backlog, with their marks."""
        self._write_warm_up(self.source)
        self._warm_up_end = data.current_lsn(self.source)
        self.workload.write(self.source)
        self.source.execute(f"INSERT INTO {MARKS} VALUES ({END_MARK})")
        self.source.execute("VACUUM ANALYZE")

    def _write_warm_up(self, database: Database) -> None:
        data.insert_in_parts(database, WARM_UP, WARM_UP_ROWS)
        database.execute(f"UPDATE {WARM_UP} SET note = 'again' WHERE id <= {WARM_UP_UPDATES}")
        database.execute(f"INSERT INTO {MARKS} VALUES ({WARM_UP_MARK})")

    def new_copy(self, name: str) -> Database:
        """A database at the target in which the same was written, beside any replication."""
        copy = self.new_target(name)
        self._write_warm_up(copy)
        self.workload.write(copy)
        return copy

    def drain_by_native(self, subscription: Subscription, repetition: int) -> Run:
        target = self.new_target(f"native_{repetition}")
        subscription.create(target)
        self.servers.settle()
        with TargetWatch(target) as seen, ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            subscription.enable()
            ended_at = seen.wait_for_row(MARKS, END_MARK, deadline_s=DEADLINE_S)
        subscription.drop()
        data.require_equal(self.source, target, *self.workload.tables)
        target.drop()
        return self._run(NATIVE, repetition, {RATE: ended_at - began_at}, watch)

    def drain_one_by_one(
        self, group: Group, repetition: int, expected: Database | None = None, beside: Beside = nullcontext
    ) -> tuple[Run, Run]:
        """The replicator fills the stream, then the worker empties it. The target is to hold what ``expected`` holds (None: the
        source). ``beside`` is what else goes on while a process runs."""
        with group.worker() as worker, beside(worker), TargetWatch(group.target) as seen:
            self._warm_up(group, worker, seen)
            with suspended(worker.pid):
                publishing = self._publish(group, repetition, beside)
                self.servers.settle()
                watch = ProcessWatch(self.servers.roots() | {WORKER: worker.pid}).start()
                began_at = time.time()
            ended_at = seen.wait_for_row(MARKS, END_MARK, [worker], DEADLINE_S)
            watch.stop()
            stop(worker)
        self._finish(group, expected)
        return publishing, self._run(WORKER_ALONE, repetition, {RATE: ended_at - began_at}, watch)

    def _publish(self, group: Group, repetition: int, beside: Beside) -> Run:
        self.servers.settle()
        with ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            with group.replicator("--until-lsn", "current") as replicator, beside(replicator):
                watch.add(REPLICATOR, replicator.pid)
                wait_until(lambda: is_over(replicator.pid), deadline_s=DEADLINE_S, what="end of the replicator", interval_s=0.005)
                ended_at = time.time()
                watch.stop()
                finish(replicator)
                streaming_at = logged_at(replicator, "replicating")
        seconds = {RATE: ended_at - streaming_at, RATE_FROM_START: ended_at - began_at}
        return self._run(REPLICATOR_ALONE, repetition, seconds, watch)

    def drain_by_both(self, group: Group, repetition: int) -> Run:
        with group.worker() as worker, TargetWatch(group.target) as seen:
            self._warm_up(group, worker, seen)
            self.servers.settle()
            with ProcessWatch(self.servers.roots() | {WORKER: worker.pid}) as watch:
                began_at = time.time()
                with group.replicator() as replicator:
                    watch.add(REPLICATOR, replicator.pid)
                    ended_at = seen.wait_for_row(MARKS, END_MARK, [worker, replicator], DEADLINE_S)
                    watch.stop()
                    streaming_at = logged_at(replicator, "replicating")
                    stop(replicator, worker)
        self._finish(group)
        seconds = {RATE: ended_at - streaming_at, RATE_FROM_START: ended_at - began_at}
        return self._run(BOTH, repetition, seconds, watch)

    def _warm_up(self, group: Group, worker: PgsluiceProcess, seen: TargetWatch) -> None:
        assert self._warm_up_end is not None, "the backlog is not written"
        group.publish_until(self._warm_up_end)
        seen.wait_for_row(MARKS, WARM_UP_MARK, [worker], DEADLINE_S)

    def _finish(self, group: Group, expected: Database | None = None) -> None:
        data.require_equal(expected or self.source, group.target, *self.workload.tables, WARM_UP)
        group.drop()

    def _run(self, contestant: str, repetition: int, seconds: dict[str, float], watch: ProcessWatch) -> Run:
        """``seconds`` holds, under the name of each rate, how long the changes took."""
        changes = self.workload.changes
        rates = {name: changes / elapsed_s for name, elapsed_s in seconds.items()}
        return Run(self._scenario, contestant + self._label, repetition, rates, changes, watch.usage())


@dataclass(frozen=True, slots=True)
class Turn:
    """The slots of one repetition. ``one_by_one`` is None where the stages are not measured each alone."""

    repetition: int
    subscription: Subscription
    one_by_one: Group | None
    both: Group

    @classmethod
    def before(cls, backlog: Backlog, repetition: int, *, stages: bool) -> Turn:
        one_by_one = backlog.group(f"alone_{repetition}") if stages else None
        both = backlog.group(f"both_{repetition}")
        return cls(repetition, backlog.subscription(f"native_{repetition}"), one_by_one, both)

    def drain(self, backlog: Backlog) -> Iterator[Run]:
        native = backlog.drain_by_native(self.subscription, self.repetition)
        yield native
        if self.one_by_one is not None:
            for run in backlog.drain_one_by_one(self.one_by_one, self.repetition):
                yield _compared(run, native)
        yield _compared(backlog.drain_by_both(self.both, self.repetition), native)


def measure_backlog(options: Options, scenario: str, workload_of: Callable[[int], Workload], changes: int) -> Iterator[Run]:
    """Drains one backlog, of ``changes`` unless the options say otherwise, on servers of its own."""
    with start_servers() as servers:
        yield from drain(Backlog(servers, scenario, workload_of(options.rows or changes)), options.repetitions)


def drain(backlog: Backlog, repetitions: Iterable[int], *, stages: bool = True) -> Iterator[Run]:
    """Writes the backlog, lets the contestants take turns, and removes the source."""
    turns = [Turn.before(backlog, repetition, stages=stages) for repetition in repetitions]
    backlog.write()
    for turn in turns:
        yield from turn.drain(backlog)
    backlog.source.drop()


def _compared(run: Run, native: Run) -> Run:
    """With its rates as shares of native's."""
    rates = {name: value for name, value in run.figures.items() if name.endswith(RATE)}
    for name, rate in rates.items():
        run.figures[name.replace(RATE, "ratio")] = rate / native.figures[RATE]
    return run
