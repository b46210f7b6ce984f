"""A backlog of updates of few rows, again and again: what is the fold to one statement per row and batch worth?

Each transaction updates a tenth of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import data
from benchmarks.backlog import BOTH, RATE, measure_backlog
from benchmarks.data import EVENTS
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.workload import Workload, execute_in_parts
from tests.servers import Database

NAME = "updates"
UPDATES = 1_000_000
ROWS = 10_000
ROWS_PER_TRANSACTION = 1_000

_UPDATE = f"""
UPDATE {EVENTS} SET amount = amount + 1, settled = NOT settled, note = md5(note) WHERE id % 10 = part % 10
"""


def workload(updates: int) -> Workload:
    transactions = max(1, updates // ROWS_PER_TRANSACTION)

    def create(database: Database) -> None:
        data.create_table(database, EVENTS)
        data.insert(database, EVENTS, ROWS)

    return Workload(
        tables=(EVENTS,),
        changes=transactions * ROWS_PER_TRANSACTION,
        create=create,
        write=lambda source: execute_in_parts(source, _UPDATE, transactions),
    )


def measure(options: Options) -> Iterator[Run]:
    return measure_backlog(options, NAME, workload, UPDATES)


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of updates over 10,000 rows, 1,000 in each transaction",
    goals=(at_least(BOTH, "ratio", 1.6),),
    plotted=(RATE,),
    measure=measure,
)
