"""A table with many rows is added to a group under load: how late are the others' changes meanwhile, and when does it join them?

Each transaction inserts a row into the table that was there before, and updates a row of the one that is added, at a steady rate.
``pgsluice tables add`` orders the table. Latencies are those of the table that was there, of all commits from the order on until
the added table has joined the others (``joined_s``). Both are compared with the source at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks import data
from benchmarks.data import EVENTS, TargetWatch
from benchmarks.group import Group, finish, stop
from benchmarks.measurement import Options, Run, Scenario, at_most
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch
from benchmarks.servers import Servers
from benchmarks.steady_load import (
    COMMITS,
    INSERT,
    WARM_UP_S,
    Sightings,
    SteadyWriter,
    after,
    insert_and_see,
    percentiles,
    steady_source,
)
from tests.servers import Database

NAME = "added_table"
CONTESTANT = "pgsluice"
ADDED = "archive"
ROWS = 2_000_000
COMMITS_PER_S = 1_000
LOOK_INTERVAL_S = 0.2

_CATCH_UP = "SELECT catch_up FROM pgsluice.applied"


def measure(options: Options) -> Iterator[Run]:
    rate = options.commits_per_s[0] if options.commits_per_s else COMMITS_PER_S
    with steady_source() as (servers, source):
        data.create_table(source, ADDED)
        rows = options.rows or ROWS
        data.insert(source, ADDED, rows)
        for repetition in options.repetitions:
            yield _add(servers, source, repetition, rate, rows)


def _add(servers: Servers, source: Database, repetition: int, rate: int, rows: int) -> Run:
    source.execute(f"TRUNCATE {EVENTS}")
    target = servers.target.create_database(f"added_{repetition}")
    data.create_tables(target)
    group = Group(f"added-{repetition}", servers, source, target, **{"copy-and-stream": True, "tables": EVENTS})
    update = f"UPDATE {ADDED} SET amount = amount + 1 WHERE id = :id % {rows} + 1"
    sightings = Sightings()
    with group.replicator() as replicator, group.worker() as worker, TargetWatch(target) as seen:
        processes = (replicator, worker)
        first = insert_and_see(source, seen, processes)
        with SteadyWriter(source, rate, f"BEGIN;\n{INSERT} RETURNING id \\gset\n{update};\nEND;\n"):
            sightings.follow(seen, after(WARM_UP_S))
            since = time.time()
            roots = servers.roots() | {REPLICATOR: replicator.pid, WORKER: worker.pid}
            with ProcessWatch(roots) as watch, group.command("tables", "add", ADDED, "--no-wait") as ordered:
                sightings.follow(seen, _joined(target))
                finish(ordered)
            until = time.time()
            sightings.follow(seen, after(WARM_UP_S))
        insert_and_see(source, seen, processes)
        sightings.look(seen)
        stop(*processes)
    data.require_equal(source, target, EVENTS, ADDED)
    commits = [(at, row_id) for at, row_id in source.execute(COMMITS, [first])]
    latencies = sightings.latencies(commits, since, until)
    figures = percentiles([1000 * latency for latency in latencies], "_ms") | {"joined_s": until - since}
    group.drop()
    return Run(NAME, CONTESTANT, repetition, figures, rows, watch.usage())


def _joined(target: Database) -> Callable[[], bool]:
    """True once tables that were behind the others are not any more."""
    connection = target.connect()
    was_behind = False
    next_look = 0.0

    def is_over() -> bool:
        nonlocal was_behind, next_look
        if time.monotonic() < next_look:
            return False
        next_look = time.monotonic() + LOOK_INTERVAL_S
        is_behind = connection.execute(_CATCH_UP).fetchone() != ("",)
        if was_behind and not is_behind:
            connection.close()
            return True
        was_behind = was_behind or is_behind
        return False

    return is_over


SCENARIO = Scenario(
    name=NAME,
    title="a table of 2,000,000 rows added to a group that replicates 1,000 transactions a second",
    goals=(at_most(CONTESTANT, "p99_ms", 2_000),),
    plotted=("p99_ms", "joined_s"),
    measure=measure,
)
