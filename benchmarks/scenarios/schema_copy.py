"""A schema of 500 tables with few rows each, copied into empty tables: what does a table cost that is hardly there?

native          from CREATE SUBSCRIPTION to the end of the last table's synchronisation.
cold            both processes, started at the same time, from then until the worker has applied the last row. ``snapshot_s`` of
                that until Spark is up and the snapshot exported, ``published_s`` until every table is in the stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import data
from benchmarks.data import TargetWatch
from benchmarks.group import DEADLINE_S, Group, logged_at, stop
from benchmarks.measurement import NATIVE, Options, Run, Scenario, at_most
from benchmarks.native import Subscription
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch
from benchmarks.servers import Servers, start_servers
from tests.servers import Database

NAME = "schema_copy"
TABLES = tuple(f"events_{number}" for number in range(500))
ROWS_PER_TABLE = 20
COLD = "cold"

COPYING = "copying tables"
FINISHED = "copy is finished"


def measure(options: Options) -> Iterator[Run]:
    rows = max(1, options.rows // len(TABLES)) if options.rows else ROWS_PER_TABLE
    with start_servers() as servers:
        source = servers.source.create_database("source")
        data.create_table(source, *TABLES)
        for table in TABLES:
            data.insert(source, table, rows)
        for repetition in range(1, options.repeat + 1):
            copy = SchemaCopy(servers, source, repetition, rows * len(TABLES))
            native = copy.by_native()
            yield native
            run = copy.by_pgsluice()
            run.figures["ratio"] = native.figures["copied_s"] / run.figures["copied_s"]
            yield run


@dataclass(frozen=True, slots=True)
class SchemaCopy:
    """The copies of one repetition."""

    servers: Servers
    source: Database
    repetition: int
    rows: int

    def by_native(self) -> Run:
        target = self._new_target(NATIVE)
        subscription = Subscription(target.dbname, self.source, TABLES)
        self.servers.settle()
        with ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            subscription.copy(target)
            subscription.wait_until_copied(DEADLINE_S)
            figures = {"copied_s": time.time() - began_at}
        subscription.drop()
        data.require_equal(self.source, target, *TABLES)
        target.drop()
        return Run(NAME, NATIVE, self.repetition, figures, self.rows, watch.usage())

    def by_pgsluice(self) -> Run:
        target = self._new_target(COLD)
        group = Group(target.dbname.replace("_", "-"), self.servers, self.source, target)
        self.servers.settle()
        with TargetWatch(target) as seen, ProcessWatch(self.servers.roots()) as watch:
            began_at = time.time()
            with group.replicator("--copy-and-stream", "--tables", ",".join(TABLES)) as replicator, group.worker() as worker:
                watch.add(REPLICATOR, replicator.pid)
                watch.add(WORKER, worker.pid)
                ended_at = seen.wait_for_copied_rows(group.name, self.rows, [worker, replicator], DEADLINE_S)
                watch.stop()
                figures = {
                    "copied_s": ended_at - began_at,
                    "snapshot_s": logged_at(replicator, COPYING) - began_at,
                    "published_s": logged_at(replicator, FINISHED) - began_at,
                }
                stop(replicator, worker)
        data.require_equal(self.source, target, *TABLES)
        group.drop()
        return Run(NAME, COLD, self.repetition, figures, self.rows, watch.usage())

    def _new_target(self, contestant: str) -> Database:
        target = self.servers.target.create_database(f"{contestant}_{self.repetition}")
        data.create_table(target, *TABLES)
        return target


SCENARIO = Scenario(
    name=NAME,
    title="500 tables of few rows, copied into empty ones",
    goals=(at_most(COLD, "copied_s", 60),),
    plotted=("copied_s",),
    measure=measure,
)
