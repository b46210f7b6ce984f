"""Backlogs of inserts whose rows are narrow and wide: what does a row cost, and what a byte?

The widest are fewer, so that no backlog is over 1 GB. Rows of 10 kB are kept out of line (TOAST) on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.backlog import BOTH, RATE, Backlog, drain
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.servers import start_servers
from benchmarks.workload import Workload, execute_in_parts
from tests.servers import Database

NAME = "widths"
WIDTHS = {"50 B": 50, "200 B": 200, "1 kB": 1_000, "10 kB": 10_000}
ROWS = 500_000
NARROW = 2_000
"""Bytes of a row; of wider ones there are fewer."""

TABLE = "documents"
KEY_BYTES = 8
ROWS_PER_TRANSACTION = 1_000

# Digests do not compress: what is stored and sent is as wide as it looks.
_INSERT = """
INSERT INTO {table}
SELECT i, left((SELECT string_agg(md5(i || '/' || n), '') FROM generate_series(0, {bytes} / 32) n), {bytes})
FROM generate_series(part, least({rows}, part + {step} - 1)) i
"""


def workload(rows: int, width: int) -> Workload:
    def create(database: Database) -> None:
        database.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, body text NOT NULL)")

    def write(source: Database) -> None:
        statement = _INSERT.format(table=TABLE, bytes=width - KEY_BYTES, rows=rows, step=ROWS_PER_TRANSACTION)
        execute_in_parts(source, statement, rows, step=ROWS_PER_TRANSACTION)

    return Workload((TABLE,), rows, create, write)


def measure(options: Options) -> Iterator[Run]:
    most = options.rows or ROWS
    with start_servers() as servers:
        for shown, width in WIDTHS.items():
            rows = min(most, most * NARROW // width)
            backlog = Backlog(servers, NAME, workload(rows, width), f"width_{width}", f", {shown}")
            for run in drain(backlog, options.repetitions, stages=False):
                run.figures["mb_per_s"] = run.figures[RATE] * width / 1e6
                yield run


SCENARIO = Scenario(
    name=NAME,
    title="backlogs of rows of 50 B, 200 B, 1 kB and 10 kB",
    goals=tuple(at_least(f"{BOTH}, {shown}", "ratio", least) for shown, least in (("200 B", 0.5), ("1 kB", 0.5), ("10 kB", 0.6))),
    plotted=("mb_per_s",),
    measure=measure,
)
