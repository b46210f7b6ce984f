"""The rows that are replicated, and how a benchmark sees that they arrived."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import psycopg

from benchmarks.demo.comparison import compare
from benchmarks.workload import execute_in_parts
from pgsluice.shared.wire.position import LSN, parse_lsn
from tests.servers import Database, PgsluiceProcess
from tests.waiting import wait_until

EVENTS = "events"
WARM_UP = "warm_up"
"""A table like EVENTS, whose rows only make a contestant warm."""

LOOK_INTERVAL_S = 0.01

_COPIED_ROWS = "SELECT copied_rows FROM pgsluice.applied WHERE group_name = %s AND worker = 'postgres'"

_TABLE = """
CREATE TABLE {} (
    id bigint PRIMARY KEY,
    account integer NOT NULL,
    kind text NOT NULL,
    amount numeric(12, 2) NOT NULL,
    settled boolean NOT NULL,
    happened_at timestamptz NOT NULL,
    note text
)
"""
_INSERT = """
INSERT INTO {}
SELECT i, i * 7919 % 100000, (ARRAY['created', 'paid', 'shipped', 'returned'])[(1 + i % 4)::int], (i * 37 % 1000000) / 100.0,
       i % 3 = 0, timestamptz '2026-01-01 00:00:00Z' + i * interval '1 second', md5(i::text)
FROM generate_series({}::bigint, {}::bigint) i
"""

_AGE = "SELECT extract(epoch FROM clock_timestamp() - happened_at)::float8 FROM {} ORDER BY id DESC LIMIT 1"
_KEY = "SELECT FROM pg_index WHERE indrelid = to_regclass(%s) AND indisprimary"


class DifferenceError(Exception):
    """Source and target hold different rows after a run: its figures mean nothing."""


def create_tables(*databases: Database) -> None:
    """Both tables: 7 columns, about 110 bytes a row."""
    for database in databases:
        create_table(database, EVENTS, WARM_UP)


def create_table(database: Database, *tables: str) -> None:
    """Each like EVENTS."""
    database.execute(";".join(map(_TABLE.format, tables)))


def insert_statement(table: str, first: int | str, last: int | str) -> str:
    """Rows ``first`` to ``last``, which may be expressions."""
    return _INSERT.format(table, first, last)


def insert(database: Database, table: str, last: int, *, first: int = 1) -> None:
    """Rows ``first`` to ``last`` in one transaction."""
    database.execute(insert_statement(table, first, last))


def insert_in_parts(database: Database, table: str, last: int, *, first: int = 1, rows_per_transaction: int = 1000) -> None:
    """Rows ``first`` to ``last`` in transactions of ``rows_per_transaction``."""
    step = rows_per_transaction
    statement = insert_statement(table, "part", f"least({last}, part + {step - 1})")
    execute_in_parts(database, statement, last, first=first, step=step)


def current_lsn(source: Database) -> LSN:
    return parse_lsn(source.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])


def require_equal(source: Database, target: Database, *tables: str) -> None:
    """Raises DifferenceError unless every table has the same rows on both sides, by checksum."""
    for table in tables:
        comparison = compare(source, target, table)
        if not comparison.is_equal:
            raise DifferenceError(
                f"table {table} differs: {comparison.source.rows:,} rows ({comparison.source.shown}) at the source,"
                f" {comparison.target.rows:,} ({comparison.target.shown}) at the target"
            )


class TargetWatch:
    """Looks for rows at the target on a connection of its own, by primary key: a look costs the target next to nothing."""

    def __init__(self, target: Database) -> None:
        self._connection = target.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._connection.close()

    def wait_for_row(
        self, table: str, row_id: int, processes: Iterable[PgsluiceProcess] = (), deadline_s: float = 600.0
    ) -> float:
        """The time (``time.time``) at which the row was first seen, LOOK_INTERVAL_S late at most. Raises at once when one of
        ``processes`` has ended."""
        statement = f"SELECT FROM {table} WHERE id = %s"

        def is_there() -> bool:
            return bool(self._connection.execute(statement, [row_id], prepare=True).rowcount) or ended(processes)

        wait_until(is_there, deadline_s=deadline_s, what=f"row {row_id} of {table} at the target", interval_s=LOOK_INTERVAL_S)
        return time.time()

    def wait_for_copied_rows(
        self, group: str, rows: int, processes: Iterable[PgsluiceProcess] = (), deadline_s: float = 600.0
    ) -> float:
        """The same for when the group's worker has copied ``rows`` rows in all, durably, by its own position."""

        def are_there() -> bool:
            return self._copied_rows(group) >= rows or ended(processes)

        wait_until(are_there, deadline_s=deadline_s, what=f"{rows} copied rows at the target", interval_s=LOOK_INTERVAL_S)
        return time.time()

    def wait_for_key(self, table: str, processes: Iterable[PgsluiceProcess] = (), deadline_s: float = 600.0) -> float:
        """The same for when ``table`` has its primary key."""

        def is_there() -> bool:
            return bool(self._connection.execute(_KEY, [table]).rowcount) or ended(processes)

        wait_until(is_there, deadline_s=deadline_s, what=f"primary key of {table} at the target", interval_s=LOOK_INTERVAL_S)
        return time.time()

    def _copied_rows(self, group: str) -> int:
        """0 before the worker has made its tables, too."""
        try:
            row = self._connection.execute(_COPIED_ROWS, [group]).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return 0
        return 0 if row is None else int(row[0])

    def wait_for_first_row(self, table: str, processes: Iterable[PgsluiceProcess] = (), deadline_s: float = 600.0) -> float:
        """The same for when any row is there."""
        statement = f"SELECT FROM {table} LIMIT 1"

        def is_there() -> bool:
            return bool(self._connection.execute(statement).rowcount) or ended(processes)

        wait_until(is_there, deadline_s=deadline_s, what=f"a row of {table} at the target", interval_s=LOOK_INTERVAL_S)
        return time.time()

    def newest_row(self, table: str) -> int:
        """The largest id; 0 when there is none."""
        row = self._connection.execute(f"SELECT max(id) FROM {table}", prepare=True).fetchone()
        assert row is not None
        return row[0] or 0

    def lag_s(self, table: str) -> float:
        """How long ago the newest row happened, by a table like EVENTS that has rows; all clocks are this machine's."""
        row = self._connection.execute(_AGE.format(table), prepare=True).fetchone()
        assert row is not None
        return float(row[0])


def ended(processes: Iterable[PgsluiceProcess]) -> bool:
    """False; raises RuntimeError when one of the processes is over."""
    for process in processes:
        if not process.is_running:
            raise RuntimeError(f"a pgsluice process ended with exit code {process.wait()}:\n{process.log()[-4000:]}")
    return False
