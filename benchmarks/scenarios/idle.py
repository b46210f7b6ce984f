"""A group at rest: what do processes cost that have nothing to do, and how soon are they awake?

Replicator and worker have applied changes before, and rest while nobody writes. CPU is per minute of that rest; ``nats`` is what
the server spends beyond ``nats alone``, measured before any process of the group is there, with the group's streams. Then one row
is committed after the other, each when the one before was seen at the target: ``first change`` and ``changes after it`` are
latencies from the source's answer to the commit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks import data
from benchmarks.data import EVENTS, TargetWatch
from benchmarks.group import Group, stop
from benchmarks.measurement import Options, Run, Scenario, at_most
from benchmarks.processes import REPLICATOR, WHOLE_WORKER, WORKER, WORKER_PARTS, ProcessWatch
from benchmarks.servers import Servers, start_servers
from tests.servers import Database, PgsluiceProcess

NAME = "idle"
SECONDS = 60.0
WARM_UP_ROWS = 10_000
SETTLING_S = 10.0
"""Until the rest begins: what follows a batch is over."""

CHANGES = 30
ROWS = WARM_UP_ROWS + 1 + CHANGES
"""Of one repetition."""

CPU = "cpu_s_per_min"
NATS = "nats"


def measure(options: Options) -> Iterator[Run]:
    seconds = options.seconds or SECONDS
    with start_servers() as servers:
        source, target = servers.source.create_database("source"), servers.target.create_database("target")
        data.create_tables(source, target)
        group = Group("idle", servers, source, target)
        group.publish_until()
        for repetition in options.repetitions:
            yield from _rest(servers, group, repetition, seconds)


def _rest(servers: Servers, group: Group, repetition: int, seconds: float) -> Iterator[Run]:
    first = (repetition - 1) * ROWS + 1
    alone_s = _watch_nats(servers, seconds)
    with group.replicator() as replicator, group.worker() as worker, TargetWatch(group.target) as seen:
        data.insert_in_parts(group.source, EVENTS, first + WARM_UP_ROWS - 1, first=first)
        seen.wait_for_row(EVENTS, first + WARM_UP_ROWS - 1, (replicator, worker))
        time.sleep(SETTLING_S)
        with ProcessWatch(servers.roots() | {REPLICATOR: replicator.pid, WORKER: worker.pid}) as watch:
            time.sleep(seconds)
        latencies_ms = [
            _latency_ms(group.source, seen, row_id, (replicator, worker)) for row_id in range(first + WARM_UP_ROWS, first + ROWS)
        ]
        stop(replicator, worker)
    data.require_equal(group.source, group.target, EVENTS)
    usage = watch.usage()
    spent_s = {part: usage[part].cpu_s for part in (REPLICATOR, *WORKER_PARTS, WHOLE_WORKER)}
    spent_s |= {NATS: usage[NATS].cpu_s - alone_s, f"{NATS} alone": alone_s}
    for part, cpu_s in spent_s.items():
        yield Run(NAME, part, repetition, {CPU: 60 * cpu_s / seconds}, 0)
    yield Run(NAME, "whole machine", repetition, {}, 0, usage)
    yield Run(NAME, "first change", repetition, {"p50_ms": latencies_ms[0]}, 1)
    after_ms = latencies_ms[1:]
    yield Run(NAME, "changes after it", repetition, {"p50_ms": statistics.median(after_ms), "max_ms": max(after_ms)}, CHANGES)


def _watch_nats(servers: Servers, seconds: float) -> float:
    """What the server spends by itself."""
    with ProcessWatch({NATS: servers.nats.pid}) as watch:
        time.sleep(seconds)
    return watch.usage()[NATS].cpu_s


def _latency_ms(source: Database, seen: TargetWatch, row_id: int, processes: tuple[PgsluiceProcess, ...]) -> float:
    data.insert(source, EVENTS, row_id, first=row_id)
    committed_at = time.time()
    return 1000 * (seen.wait_for_row(EVENTS, row_id, processes) - committed_at)


SCENARIO = Scenario(
    name=NAME,
    title="a group without changes, and the first change after the rest",
    goals=(at_most(WHOLE_WORKER, CPU, 0.3), at_most(REPLICATOR, CPU, 0.2), at_most(NATS, CPU, 0.1)),
    plotted=(CPU,),
    measure=measure,
)
