"""Rows that are there: how fast do they reach an empty target table, which (but in one case) has its primary key?

All contestants and repetitions copy the same table of the same source, each into a target database of its own.

native          the initial synchronisation of a subscription, from CREATE SUBSCRIPTION to the commit of its COPY.
replicator      alone, with an idle worker suspended: from its log line "copying tables" (Spark is up, the snapshot is exported)
                to "table is copied" (JetStream has acknowledged every row).
worker          alone: the suspended worker has loaded copied rows before and is warm; from the moment it may go on, with
                everything in the stream.
warm            both: the worker is warm and idle; from the replicator's log line "copying tables".
warm, no table  the same, but there is no table at the target: the worker makes it, and builds its key when all rows are there.
                Ends with the key.
cold            both: from the start of their processes, at the same time. ``first_row_s`` is until the first row is seen at the
                target, ``worker_cpu_s`` what the worker has spent until then, with its processes that have ended.

Those with a worker end when its position, kept in the target, has passed the last row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import data
from benchmarks.data import EVENTS, WARM_UP, TargetWatch
from benchmarks.group import DEADLINE_S, Group, logged_at, stop
from benchmarks.measurement import NATIVE, Options, Run, Scenario, at_least
from benchmarks.native import Subscription
from benchmarks.processes import REPLICATOR, WHOLE_WORKER, WORKER, ProcessWatch, suspended
from benchmarks.servers import Servers, start_servers
from tests.servers import Database, PgsluiceProcess

NAME = "initial_copy"
ROWS = 5_000_000
WARM_UP_ROWS = 50_000

REPLICATOR_ALONE, WORKER_ALONE, WARM, NO_TABLE, COLD = "replicator alone", "worker alone", "warm", "warm, no table", "cold"
COPYING = "copying tables"
COPIED = "table is copied"

WARM_UP_TABLE = ("--copy-and-stream", "--tables", WARM_UP)
BOTH_TABLES = ("--copy-and-stream", "--tables", f"{WARM_UP},{EVENTS}")


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers:
        source = servers.source.create_database("source")
        data.create_tables(source)
        data.insert_in_parts(source, WARM_UP, WARM_UP_ROWS)
        data.insert_in_parts(source, EVENTS, rows, rows_per_transaction=50_000)
        source.execute("VACUUM ANALYZE")
        for repetition in range(1, options.repeat + 1):
            copy = Copy(servers, source, repetition, rows)
            native = copy.by_native()
            yield native
            for run in copy.by_pgsluice():
                run.figures["ratio"] = run.figures["rows_per_s"] / native.figures["rows_per_s"]
                yield run


@dataclass(frozen=True, slots=True)
class Copy:
    """The copies of one repetition."""

    servers: Servers
    source: Database
    repetition: int
    rows: int

    def by_native(self) -> Run:
        target = self._new_target("native")
        subscription = Subscription(target.dbname, self.source, [EVENTS])
        self.servers.settle()
        with TargetWatch(target) as seen, ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            subscription.copy(target)
            ended_at = seen.wait_for_row(EVENTS, self.rows, deadline_s=DEADLINE_S)
        subscription.drop()
        data.require_equal(self.source, target, EVENTS)
        target.drop()
        return self._run(NATIVE, ended_at - began_at, watch)

    def by_pgsluice(self) -> Iterator[Run]:
        yield from self.one_by_one()
        yield self.warm()
        yield self.warm_without_table()
        yield self.cold()

    def one_by_one(self) -> tuple[Run, Run]:
        """The replicator fills the snapshot stream, then the worker empties it."""
        group = self._new_group("alone")
        with group.worker() as worker, TargetWatch(group.target) as seen:
            self._warm_up(group, worker, seen)
            with suspended(worker.pid):
                publishing = self._publish(group)
                self.servers.settle()
                watch = ProcessWatch(self.servers.roots() | {WORKER: worker.pid}).start()
                began_at = time.time()
            ended_at = seen.wait_for_copied_rows(group.name, WARM_UP_ROWS + self.rows, [worker], DEADLINE_S)
            watch.stop()
            stop(worker)
        self._finish(group, EVENTS, WARM_UP)
        return publishing, self._run(WORKER_ALONE, ended_at - began_at, watch)

    def _publish(self, group: Group) -> Run:
        self.servers.settle()
        with group.replicator(*BOTH_TABLES) as replicator:
            began_at = logged_at(replicator, COPYING)
            with ProcessWatch(self.servers.roots() | {REPLICATOR: replicator.pid}) as watch:
                ended_at = logged_at(replicator, COPIED)
            stop(replicator)
        return self._run(REPLICATOR_ALONE, ended_at - began_at, watch)

    def warm(self) -> Run:
        group = self._new_group("warm")

        def wait(seen: TargetWatch, processes: Sequence[PgsluiceProcess]) -> float:
            return seen.wait_for_copied_rows(group.name, WARM_UP_ROWS + self.rows, processes, DEADLINE_S)

        return self._by_warm(WARM, group, wait)

    def warm_without_table(self) -> Run:
        target = self.servers.target.create_database(f"no_table_{self.repetition}")
        group = self._group_of(target, **{"target-sync-schema": True})

        def wait(seen: TargetWatch, processes: Sequence[PgsluiceProcess]) -> float:
            return seen.wait_for_key(EVENTS, processes, DEADLINE_S)

        return self._by_warm(NO_TABLE, group, wait)

    def _by_warm(self, contestant: str, group: Group, wait: Callable[[TargetWatch, Sequence[PgsluiceProcess]], float]) -> Run:
        """``wait`` returns the time at which everything is there."""
        with group.worker() as worker, TargetWatch(group.target) as seen:
            self._warm_up(group, worker, seen)
            self.servers.settle()
            with group.replicator(*BOTH_TABLES) as replicator:
                began_at = logged_at(replicator, COPYING)
                roots = self.servers.roots() | {REPLICATOR: replicator.pid, WORKER: worker.pid}
                with ProcessWatch(roots) as watch:
                    ended_at = wait(seen, (worker, replicator))
                stop(replicator, worker)
        self._finish(group, EVENTS, WARM_UP)
        return self._run(contestant, ended_at - began_at, watch)

    def cold(self) -> Run:
        group = self._new_group("cold")
        self.servers.settle()
        with TargetWatch(group.target) as seen, ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            with group.replicator("--copy-and-stream", "--tables", EVENTS) as replicator, group.worker() as worker:
                watch.add(REPLICATOR, replicator.pid)
                watch.add(WORKER, worker.pid)
                first = {"first_row_s": seen.wait_for_first_row(EVENTS, [worker, replicator]) - began_at}
                first["worker_cpu_s"] = watch.cpu_s(WHOLE_WORKER)
                ended_at = seen.wait_for_copied_rows(group.name, self.rows, [worker, replicator], DEADLINE_S)
                watch.stop()
                stop(replicator, worker)
        self._finish(group, EVENTS)
        run = self._run(COLD, ended_at - began_at, watch)
        run.figures.update(first)
        return run

    def _warm_up(self, group: Group, worker: PgsluiceProcess, seen: TargetWatch) -> None:
        """The group has copied WARM_UP; its replicator is gone."""
        with group.replicator(*WARM_UP_TABLE) as replicator:
            seen.wait_for_copied_rows(group.name, WARM_UP_ROWS, [worker, replicator], DEADLINE_S)
            stop(replicator)

    def _new_group(self, name: str) -> Group:
        return self._group_of(self._new_target(name))

    def _group_of(self, target: Database, **keys: Any) -> Group:
        return Group(target.dbname.replace("_", "-"), self.servers, self.source, target, **keys)

    def _new_target(self, name: str) -> Database:
        target = self.servers.target.create_database(f"{name}_{self.repetition}")
        data.create_tables(target)
        return target

    def _finish(self, group: Group, *tables: str) -> None:
        data.require_equal(self.source, group.target, *tables)
        group.drop()

    def _run(self, contestant: str, seconds: float, watch: ProcessWatch) -> Run:
        return Run(NAME, contestant, self.repetition, {"rows_per_s": self.rows / seconds}, self.rows, watch.usage())


SCENARIO = Scenario(
    name=NAME,
    title="a table that is there, copied into an empty one",
    goals=(
        at_least(REPLICATOR_ALONE, "rows_per_s", 800_000),
        at_least(WARM, "ratio", 0.95),
        at_least(COLD, "ratio", 0.55),
    ),
    plotted=("rows_per_s",),
    measure=measure,
)
