"""The same number of inserts spread over 1, 10, 100 and 500 tables: what does a table cost?

Every backlog is written alike: transactions of ten inserts of 100 rows, each into the next table.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import data
from benchmarks.backlog import BOTH, RATE, Backlog, drain
from benchmarks.measurement import Options, Run, Scenario, at_most
from benchmarks.servers import start_servers
from benchmarks.workload import Workload, execute_in_parts
from tests.servers import Database

NAME = "tables"
TABLES = (1, 10, 100, 500)
ROWS = 500_000
ROWS_PER_PIECE = 100
PIECES_PER_TRANSACTION = 10
COST = "one_table_ratio"
"""The time of the backlog as a share of the time of the one in a single table, in the same repetition."""

_PREFIX = "events_"
_TRANSACTION = f"""
FOR piece IN (part - 1) * {PIECES_PER_TRANSACTION} .. part * {PIECES_PER_TRANSACTION} - 1 LOOP
    EXECUTE replace($insert${data.insert_statement("@table", "$1", "$2")}$insert$, '@table', '{_PREFIX}' || piece % @tables)
    USING piece * {ROWS_PER_PIECE} + 1, (piece + 1) * {ROWS_PER_PIECE};
END LOOP
"""


def workload(rows: int, tables: int) -> Workload:
    transactions = max(1, rows // (ROWS_PER_PIECE * PIECES_PER_TRANSACTION))
    names = tuple(f"{_PREFIX}{number}" for number in range(tables))
    statement = _TRANSACTION.replace("@tables", str(tables))

    def create(database: Database) -> None:
        data.create_table(database, *names)

    def write(source: Database) -> None:
        execute_in_parts(source, statement, transactions)

    return Workload(names, transactions * PIECES_PER_TRANSACTION * ROWS_PER_PIECE, create, write)


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    single: dict[tuple[str, int], float] = {}
    with start_servers() as servers:
        for tables in TABLES:
            label = _label(tables)
            backlog = Backlog(servers, NAME, workload(rows, tables), f"tables_{tables}", label)
            for run in drain(backlog, options.repetitions, stages=False):
                rate = run.figures[RATE]
                reference = single.setdefault((run.contestant.removesuffix(label), run.repetition), rate)
                run.figures[COST] = reference / rate
                yield run


def _label(tables: int) -> str:
    return f", {tables} table" if tables == 1 else f", {tables} tables"


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of the same inserts in 1, 10, 100 and 500 tables",
    goals=(at_most(BOTH + _label(500), COST, 1.3),),
    plotted=(RATE,),
    measure=measure,
)
