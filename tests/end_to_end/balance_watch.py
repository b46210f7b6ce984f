"""A reader of the target that looks all the time, and remembers whether it ever saw half a transaction."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Self

import psycopg

from tests.servers import Database

_SUMS = "SELECT (SELECT sum(amount) FROM left_side), (SELECT sum(amount) FROM right_side)"


class BalanceWatch:
    """Polls both sums at once. ``unequal`` holds the pairs that differed; ``looks`` counts polls that saw both tables. A server
    that goes away is looked for until it is back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.unequal: list[tuple[object, ...]] = []
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(0.1):
            with contextlib.suppress(psycopg.OperationalError), self._database.connect() as connection:
                while not self._stopping.wait(0.01):
                    self._look(connection)

    def _look(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        try:
            left, right = connection.execute(_SUMS).fetchone() or (None, None)
        except psycopg.errors.UndefinedTable:
            return  # the worker has not created them yet
        self.looks += 1
        if left != right:
            self.unequal.append((left, right))
