"""A backlog of pgbench's own transactions, like TPC-B: three updates and an insert in each, in four tables."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.backlog import BOTH, RATE, measure_backlog
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.workload import Workload
from tests.end_to_end import pgbench
from tests.servers import Database

NAME = "tpcb"
CHANGES = 1_200_000
CHANGES_PER_TRANSACTION = 4
SCALE = 10
CONNECTIONS = 4


def workload(changes: int) -> Workload:
    per_connection = max(1, changes // CHANGES_PER_TRANSACTION // CONNECTIONS)
    return Workload(
        tables=pgbench.TABLES,
        changes=per_connection * CONNECTIONS * CHANGES_PER_TRANSACTION,
        create=lambda database: pgbench.initialize(database, SCALE),
        write=lambda source: _write(source, per_connection),
    )


def _write(source: Database, per_connection: int) -> None:
    """Without waiting for the disk at each commit: how the backlog came about is nobody's measurement."""
    source.execute(f"ALTER DATABASE {source.dbname} SET synchronous_commit = off")
    pgbench.run(source, "-n", "-M", "prepared", "-c", str(CONNECTIONS), "-j", "1", "-t", str(per_connection))
    source.execute(f"ALTER DATABASE {source.dbname} RESET synchronous_commit")


def measure(options: Options) -> Iterator[Run]:
    return measure_backlog(options, NAME, workload, CHANGES)


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of pgbench's TPC-B-like transactions, four changes in each",
    goals=(at_least(BOTH, "ratio", 1.0),),
    plotted=(RATE,),
    measure=measure,
)
