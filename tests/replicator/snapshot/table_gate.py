"""A gate before a table that is being copied: a test decides how many ranges are read."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from tests.servers import Database
from tests.waiting import wait_until

_WAITING = """SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class TableGate:
    """Open when it is made. Closed, no range of the table is read: an ACCESS EXCLUSIVE lock stops each before its first row."""

    def __init__(self, source: Database, table: str) -> None:
        self._source = source
        self._table = table
        self._keeper = source.connect()
        self._relation = sql.Identifier(table).as_string(self._keeper)

    def close(self) -> None:
        self._keeper.execute(self._lock)

    def __enter__(self) -> TableGate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(psycopg.OperationalError):  # a server that was killed keeps no lock
            self._keeper.commit()
        self._keeper.close()

    def execute(self, statement: LiteralString) -> None:
        """Runs it under the lock; it is committed when the gate opens."""
        self._keeper.execute(statement)

    def let_pass(self, ranges: int) -> None:
        """Lets at least so many ranges be read, and at most one more than there are tasks."""
        while ranges > 0:
            ranges -= wait_until(self._waiting, what="a range at the gate")
            self._hand_over()

    def _hand_over(self) -> None:
        """The next keeper queues up behind the ranges that wait, before the lock is given up: those behind it wait on."""
        following = self._source.connect()
        already = self._waiting()
        following.pgconn.send_query(self._lock)
        wait_until(lambda: self._waiting() > already, what="the lock's next keeper waits")
        self._keeper.close()
        while following.pgconn.get_result() is not None:
            pass
        assert following.info.transaction_status is TransactionStatus.INTRANS
        self._keeper = following

    def _waiting(self) -> int:
        [(count,)] = self._source.execute(_WAITING, [self._relation])
        return int(count)

    @property
    def _lock(self) -> bytes:
        return f"BEGIN; LOCK TABLE {self._relation} IN ACCESS EXCLUSIVE MODE".encode()
