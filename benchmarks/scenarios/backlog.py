"""Inserts that were made while nothing read: how fast do they reach the target?

All contestants and repetitions drain the same inserts of the same source, each from a slot of its own that existed before them,
into a target database of its own. Every measurement ends when the last row, in commit order, is seen at the target.

native          from ALTER SUBSCRIPTION … ENABLE.
replicator      alone, with an idle worker suspended: ``pgsluice replicator --until-lsn current``, from its log line "replicating"
                and from the start of its process, to the end of its process.
worker          alone: the suspended worker has applied rows before and is warm; from the moment it may go on, with everything
                in the stream.
both            the worker is warm and idle; from the replicator's log line, and from the start of its process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import data
from benchmarks.data import EVENTS, WARM_UP, TargetWatch
from benchmarks.group import Group, finish, logged_at, stop
from benchmarks.measurement import NATIVE, Options, Run, Scenario, at_least
from benchmarks.native import Subscription
from benchmarks.processes import WORKER, ProcessWatch, is_over, suspended
from benchmarks.servers import Servers, start_servers
from shared.lsn import LSN
from tests.servers import Database
from tests.waiting import wait_until

NAME = "backlog"
ROWS = 500_000
WARM_UP_ROWS = 50_000
DEADLINE_S = 600.0

REPLICATOR_ALONE, WORKER_ALONE, BOTH = "replicator alone", "worker alone", "both"


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers:
        source = servers.source.create_database("source")
        data.create_tables(source)
        backlogs = [Backlog.before(servers, source, repetition, rows) for repetition in range(1, options.repeat + 1)]
        data.insert_in_parts(source, WARM_UP, WARM_UP_ROWS)
        warm_up_end = data.current_lsn(source)
        data.insert_in_parts(source, EVENTS, rows)
        source.execute("VACUUM ANALYZE")
        for backlog in backlogs:
            native = backlog.drain_by_native()
            yield native
            for run in (*backlog.drain_one_by_one(warm_up_end), backlog.drain_by_both(warm_up_end)):
                yield _compared(run, native)


def _compared(run: Run, native: Run) -> Run:
    """With its rates as shares of native's."""
    rates = {name: value for name, value in run.figures.items() if name.endswith("rows_per_s")}
    for name, rate in rates.items():
        run.figures[name.replace("rows_per_s", "ratio")] = rate / native.figures["rows_per_s"]
    return run


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog of one repetition: a slot for each way to drain it."""

    servers: Servers
    source: Database
    repetition: int
    rows: int
    subscription: Subscription
    one_by_one: Group
    both: Group

    @classmethod
    def before(cls, servers: Servers, source: Database, repetition: int, rows: int) -> Backlog:
        """Makes the slots: what is inserted from now on waits in them."""
        targets = [servers.target.create_database(f"{name}_{repetition}") for name in ("alone", "both")]
        data.create_tables(*targets)
        groups = [Group(target.dbname.replace("_", "-"), servers, source, target) for target in targets]
        for group in groups:
            group.publish_until()
        subscription = Subscription(f"native_{repetition}", source)
        subscription.create_slot()
        return cls(servers, source, repetition, rows, subscription, *groups)

    def drain_by_native(self) -> Run:
        target = self.servers.target.create_database(f"native_{self.repetition}")
        data.create_tables(target)
        self.subscription.create(target)
        self.servers.settle()
        with TargetWatch(target) as rows, ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            self.subscription.enable()
            ended_at = rows.wait_for_row(EVENTS, self.rows, deadline_s=DEADLINE_S)
        self.subscription.drop()
        data.require_equal(self.source, target, EVENTS)
        target.drop()
        return self._run(NATIVE, {"rows_per_s": ended_at - began_at}, watch)

    def drain_one_by_one(self, warm_up_end: LSN) -> tuple[Run, Run]:
        """The replicator fills the stream, then the worker empties it."""
        group = self.one_by_one
        with group.worker() as worker, TargetWatch(group.target) as rows:
            group.publish_until(warm_up_end)
            rows.wait_for_row(WARM_UP, WARM_UP_ROWS, [worker], DEADLINE_S)
            with suspended(worker.pid):
                publishing = self._publish(group)
                self.servers.settle()
                watch = ProcessWatch(self.servers.roots() | {WORKER: worker.pid}).start()
                began_at = time.time()
            ended_at = rows.wait_for_row(EVENTS, self.rows, [worker], DEADLINE_S)
            watch.stop()
            stop(worker)
        data.require_equal(self.source, group.target, EVENTS, WARM_UP)
        group.target.drop()
        return publishing, self._run(WORKER_ALONE, {"rows_per_s": ended_at - began_at}, watch)

    def _publish(self, group: Group) -> Run:
        self.servers.settle()
        with ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            with group.replicator("--until-lsn", "current") as replicator:
                watch.add("replicator", replicator.pid)
                wait_until(lambda: is_over(replicator.pid), deadline_s=DEADLINE_S, what="end of the replicator", interval_s=0.005)
                ended_at = time.time()
                watch.stop()
                finish(replicator)
                streaming_at = logged_at(replicator, "replicating")
        seconds = {"rows_per_s": ended_at - streaming_at, "from_start_rows_per_s": ended_at - began_at}
        return self._run(REPLICATOR_ALONE, seconds, watch)

    def drain_by_both(self, warm_up_end: LSN) -> Run:
        group = self.both
        with group.worker() as worker, TargetWatch(group.target) as rows:
            group.publish_until(warm_up_end)
            rows.wait_for_row(WARM_UP, WARM_UP_ROWS, [worker], DEADLINE_S)
            self.servers.settle()
            with ProcessWatch(self.servers.roots() | {WORKER: worker.pid}) as watch:
                began_at = time.time()
                with group.replicator() as replicator:
                    watch.add("replicator", replicator.pid)
                    ended_at = rows.wait_for_row(EVENTS, self.rows, [worker, replicator], DEADLINE_S)
                    watch.stop()
                    streaming_at = logged_at(replicator, "replicating")
                    stop(replicator, worker)
        data.require_equal(self.source, group.target, EVENTS, WARM_UP)
        group.target.drop()
        seconds = {"rows_per_s": ended_at - streaming_at, "from_start_rows_per_s": ended_at - began_at}
        return self._run(BOTH, seconds, watch)

    def _run(self, contestant: str, seconds: dict[str, float], watch: ProcessWatch) -> Run:
        """``seconds`` holds, under the name of each rate, how long the rows took."""
        rates = {name: self.rows / elapsed_s for name, elapsed_s in seconds.items()}
        return Run(NAME, contestant, self.repetition, rates, self.rows, watch.usage())


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of inserts in transactions of 1,000 rows",
    goals=(
        at_least(REPLICATOR_ALONE, "rows_per_s", 250_000),
        at_least(WORKER_ALONE, "rows_per_s", 100_000),
        at_least(BOTH, "ratio", 0.45),
    ),
    measure=measure,
)
