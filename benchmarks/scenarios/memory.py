"""The memory of a group's processes after a copy and a load.

It is resident (``rss``), and with pages that processes share shared out (``pss``), so that the sum is what the group takes.

The replicator copies a table and streams on, the worker applies both; then each row of the table is updated, and everything is
looked at when the last update is seen at the target. What ran only for the copy is gone by then.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import data
from benchmarks.data import EVENTS, WARM_UP, TargetWatch
from benchmarks.group import DEADLINE_S, Group, stop
from benchmarks.measurement import Options, Run, Scenario, at_most
from benchmarks.process_memory import Memory, RoleMemory, by_role
from benchmarks.processes import REPLICATOR, WORKER
from benchmarks.servers import Servers, start_servers
from benchmarks.workload import execute_in_parts

NAME = "memory"
GROUP = "group"
COPYING = "copying tables"
ROWS = 500_000
ROWS_PER_TRANSACTION = 1000

_UPDATE = "UPDATE {table} SET amount = amount + 1 WHERE id BETWEEN part AND part + {last}"


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers:
        for repetition in options.repetitions:
            for role, memories in _after_load(servers, repetition, rows).items():
                yield Run(NAME, role, repetition, _figures(RoleMemory.of(memories)), 0)


def _after_load(servers: Servers, repetition: int, rows: int) -> dict[str, list[Memory]]:
    source = servers.source.create_database(f"source_{repetition}")
    target = servers.target.create_database(f"target_{repetition}")
    data.create_tables(source, target)
    data.insert_in_parts(source, EVENTS, rows)
    group = Group(f"memory-{repetition}", servers, source, target)
    flags = ("--copy-and-stream", "--tables", f"{EVENTS},{WARM_UP}")
    with group.replicator(*flags) as replicator:
        replicator.wait_for_log(COPYING)  # a worker needs what the replicator makes first
        with group.worker() as worker, TargetWatch(target) as seen:
            processes = (replicator, worker)
            seen.wait_for_copied_rows(group.name, rows, processes, DEADLINE_S)
            update = _UPDATE.format(table=EVENTS, last=ROWS_PER_TRANSACTION - 1)
            execute_in_parts(source, update, rows, step=ROWS_PER_TRANSACTION)
            data.insert(source, WARM_UP, 1)
            seen.wait_for_row(WARM_UP, 1, processes, DEADLINE_S)
            memories = by_role({REPLICATOR: replicator.pid, WORKER: worker.pid})
            stop(replicator, worker)
    data.require_equal(source, target, EVENTS, WARM_UP)
    group.drop()
    source.drop()
    return memories | {GROUP: [memory for each in memories.values() for memory in each]}


def _figures(memory: RoleMemory) -> dict[str, float]:
    return {
        "processes": memory.processes,
        "rss_mb": memory.rss_bytes / 1e6,
        "pss_mb": memory.pss_bytes / 1e6,
        "largest_rss_mb": memory.largest_rss_bytes / 1e6,
    }


SCENARIO = Scenario(
    name=NAME,
    title="the memory of a group's processes after a copy and a load",
    goals=(at_most(GROUP, "pss_mb", 550),),
    plotted=("rss_mb", "pss_mb"),
    measure=measure,
)
