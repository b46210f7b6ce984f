"""One transaction of millions of rows, with a source that gives up on a silent receiver after 10 seconds.

Replicator and worker run and are warm. The time counts from when the source had answered the commit to when the rows are seen at
the target; memory is the peak of the processes' lives.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import data
from benchmarks.data import EVENTS, WARM_UP, TargetWatch
from benchmarks.group import Group, stop
from benchmarks.measurement import NATIVE, Options, Run, Scenario, at_most
from benchmarks.native import Subscription
from benchmarks.processes import REPLICATOR, WHOLE_WORKER, WORKER, ProcessWatch
from benchmarks.servers import Servers, start_servers
from tests.servers import Database, PgsluiceProcess

NAME = "large_transaction"
PGSLUICE = "pgsluice"
ROWS = 5_000_000
WARM_UP_ROWS = 1000
DEADLINE_S = 1800.0
HEAP_MB = 1074
"""The default of the worker's JVM, 1 GiB."""

SOURCE_SETTINGS = {"wal_sender_timeout": "10s"}
TARGET_SETTINGS = {"track_commit_timestamp": "on"}

_TRANSACTIONS = f"SELECT count(DISTINCT pg_xact_commit_timestamp(xmin)) FROM {EVENTS}"
"""A transaction and its subtransactions have one commit timestamp; ``xmin`` alone tells subtransactions apart."""

_SERVER_GAVE_UP = "terminating walsender process due to replication timeout"
_REPLICATOR_LOST_IT = "replication interrupted"


def measure(options: Options) -> Iterator[Run]:
    for repetition in range(1, options.repeat + 1):
        for contestant in (measure_native, measure_pgsluice):
            yield contestant(options.rows or ROWS, repetition)


def measure_pgsluice(rows: int, repetition: int = 1) -> Run:
    with start_servers(source_settings=SOURCE_SETTINGS, target_settings=TARGET_SETTINGS) as servers:
        source, target = _databases(servers)
        group = Group("large", servers, source, target)
        with group.replicator() as replicator, group.worker() as worker:
            replicator.wait_for_log("replicating")
            roots = servers.roots() | {REPLICATOR: replicator.pid, WORKER: worker.pid}
            figures, watch = _replicate(servers, source, target, rows, roots, (replicator, worker))
            stop(replicator, worker)
            figures["disconnects"] = servers.source.log().count(_SERVER_GAVE_UP) + replicator.log().count(_REPLICATOR_LOST_IT)
        data.require_equal(source, target, EVENTS, WARM_UP)
        figures["target_transactions"] = target.execute(_TRANSACTIONS)[0][0]
    usage = watch.usage()
    figures["replicator_mb"] = usage[REPLICATOR].largest_bytes / 1e6
    figures["worker_mb"] = usage[WHOLE_WORKER].together_bytes / 1e6
    return Run(NAME, PGSLUICE, repetition, figures, rows, usage)


def measure_native(rows: int, repetition: int = 1) -> Run:
    with start_servers(source_settings=SOURCE_SETTINGS, target_settings=TARGET_SETTINGS) as servers:
        source, target = _databases(servers)
        subscription = Subscription("native", source, [EVENTS])
        subscription.create_slot()
        subscription.create(target)
        subscription.enable()
        figures, watch = _replicate(servers, source, target, rows, servers.roots(), ())
        figures["disconnects"] = servers.source.log().count(_SERVER_GAVE_UP)
        subscription.drop()
        data.require_equal(source, target, EVENTS)
        figures["target_transactions"] = target.execute(_TRANSACTIONS)[0][0]
    return Run(NAME, NATIVE, repetition, figures, rows, watch.usage())


def _databases(servers: Servers) -> tuple[Database, Database]:
    source, target = servers.source.create_database("source"), servers.target.create_database("target")
    data.create_tables(source, target)
    return source, target


def _replicate(
    servers: Servers,
    source: Database,
    target: Database,
    rows: int,
    roots: dict[str, int],
    processes: tuple[PgsluiceProcess, ...],
) -> tuple[dict[str, float], ProcessWatch]:
    with TargetWatch(target) as seen:
        if processes:
            data.insert(source, WARM_UP, WARM_UP_ROWS)
            seen.wait_for_row(WARM_UP, WARM_UP_ROWS, processes)
        servers.settle()
        with ProcessWatch(roots) as watch:
            data.insert(source, EVENTS, rows)
            committed_at = time.time()
            visible_at = seen.wait_for_row(EVENTS, rows, processes, DEADLINE_S)
    seconds = visible_at - committed_at
    return {"after_commit_s": seconds, "rows_per_s": rows / seconds}, watch


SCENARIO = Scenario(
    name=NAME,
    title="one large transaction, with wal_sender_timeout = 10s",
    goals=(
        at_most(PGSLUICE, "replicator_mb", 150),
        at_most(PGSLUICE, "worker_mb", HEAP_MB + 600),
        at_most(PGSLUICE, "disconnects", 0),
        at_most(PGSLUICE, "target_transactions", 1),
    ),
    plotted=("rows_per_s",),
    measure=measure,
)
