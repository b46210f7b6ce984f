"""Inserts that were made while nothing read (``benchmarks.backlog`` says what is measured)."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import data
from benchmarks.backlog import BOTH, RATE, REPLICATOR_ALONE, WORKER_ALONE, measure_backlog
from benchmarks.data import EVENTS
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.workload import Workload

NAME = "backlog"
ROWS = 500_000


def workload(rows: int) -> Workload:
    return Workload(
        tables=(EVENTS,),
        changes=rows,
        create=lambda database: data.create_table(database, EVENTS),
        write=lambda source: data.insert_in_parts(source, EVENTS, rows),
    )


def measure(options: Options) -> Iterator[Run]:
    return measure_backlog(options, NAME, workload, ROWS)


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of inserts in transactions of 1,000 rows",
    goals=(
        at_least(REPLICATOR_ALONE, RATE, 250_000),
        at_least(WORKER_ALONE, RATE, 100_000),
        at_least(BOTH, "ratio", 0.75),
    ),
    plotted=(RATE,),
    measure=measure,
)
