"""Definitions that are tracked: what does ``track-ddl`` cost while nothing is altered?

Two groups drain the same backlog of pgbench's TPC-B-like transactions, one with ``track-ddl`` and one without, in turns: who goes
first changes with each repetition. The source holds the capture of the one throughout, so both are of the same transactions.
``not_tracked_ratio`` is the rate as a share of the rate without, in the same repetition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.backlog import BOTH, RATE, REPLICATOR_ALONE, WORKER_ALONE, Backlog
from benchmarks.group import Group
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.scenarios.tpcb import workload
from benchmarks.servers import start_servers

NAME = "tracked_definitions"
CHANGES = 800_000
RATIO = "not_tracked_ratio"
NOT_TRACKED, TRACKED = ", not tracked", ", tracked"
CONTESTANTS = (REPLICATOR_ALONE, WORKER_ALONE, BOTH)
LEAST = 0.98


def measure(options: Options) -> Iterator[Run]:
    with start_servers() as servers:
        backlog = Backlog(servers, NAME, workload(options.rows or CHANGES))
        groups = {
            (repetition, label, together): _group(backlog, repetition, label, together)
            for repetition in options.repetitions
            for label in (NOT_TRACKED, TRACKED)
            for together in (False, True)
        }
        backlog.write()
        for repetition in options.repetitions:
            order = (NOT_TRACKED, TRACKED) if repetition % 2 else (TRACKED, NOT_TRACKED)
            alone = {label: backlog.drain_one_by_one(groups[repetition, label, False], repetition) for label in order}
            both = {label: backlog.drain_by_both(groups[repetition, label, True], repetition) for label in order}
            for stage, contestant in enumerate(CONTESTANTS):
                runs = {label: (*alone[label], both[label])[stage] for label in order}
                runs[TRACKED].figures[RATIO] = runs[TRACKED].figures[RATE] / runs[NOT_TRACKED].figures[RATE]
                for label in (NOT_TRACKED, TRACKED):
                    yield replace(runs[label], contestant=contestant + label)


def _group(backlog: Backlog, repetition: int, label: str, together: bool) -> Group:
    name = f"{'tracked' if label == TRACKED else 'not'}_{'both' if together else 'alone'}_{repetition}"
    return backlog.group(name, **{"track-ddl": label == TRACKED})


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of pgbench's TPC-B-like transactions, with and without track-ddl",
    goals=tuple(at_least(contestant + TRACKED, RATIO, LEAST) for contestant in CONTESTANTS),
    plotted=(RATE,),
    measure=measure,
)
