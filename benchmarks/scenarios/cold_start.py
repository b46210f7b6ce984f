"""From the start of a worker's process to its first applied batch, with rows waiting in the stream.

``cpu_s`` is what the worker has spent until then: all its processes, with those that have ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import data
from benchmarks.data import EVENTS, TargetWatch
from benchmarks.group import Group, logged_at, stop
from benchmarks.measurement import Options, Run, Scenario, at_most
from benchmarks.processes import WHOLE_WORKER, WORKER, ProcessWatch
from benchmarks.servers import start_servers

NAME = "cold_start"
CONTESTANT = "worker"
ROWS = 1000


def measure(options: Options) -> Iterator[Run]:
    with start_servers() as servers:
        source, target = servers.source.create_database("source"), servers.target.create_database("target")
        data.create_tables(source, target)
        group = Group("cold-start", servers, source, target)
        group.publish_until()
        for repetition in range(1, options.repeat + 1):
            last = repetition * ROWS
            data.insert(source, EVENTS, last, first=last - ROWS + 1)
            group.publish_until()
            servers.settle()
            with TargetWatch(target) as rows, ProcessWatch(servers.roots()) as watch:
                began_at = time.time()
                with group.worker() as worker:
                    watch.add(WORKER, worker.pid)
                    applied_at = rows.wait_for_row(EVENTS, last, [worker])
                    watch.stop()
                    reading_at = logged_at(worker, "reading")
                    stop(worker)
            data.require_equal(source, target, EVENTS)
            usage = watch.usage()
            figures = {"first_batch_s": applied_at - began_at, "query_started_s": reading_at - began_at}
            figures["cpu_s"] = usage[WHOLE_WORKER].cpu_s
            yield Run(NAME, CONTESTANT, repetition, figures, ROWS, usage)


SCENARIO = Scenario(
    name=NAME,
    title="a worker's start, to its first applied batch",
    goals=(at_most(CONTESTANT, "first_batch_s", 3.5), at_most(CONTESTANT, "cpu_s", 8)),
    plotted=("first_batch_s",),
    measure=measure,
)
