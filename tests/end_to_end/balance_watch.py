"""A reader of the target that looks all the time, and remembers whether it ever saw half a transaction."""

from __future__ import annotations

import psycopg

from tests.servers import Database
from tests.target_reader import Reader

_SUMS = "SELECT (SELECT sum(amount) FROM left_side), (SELECT sum(amount) FROM right_side)"


class BalanceWatch(Reader):
    """Polls both sums at once. ``unequal`` holds the pairs that differed; ``looks`` counts polls that saw both tables."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.unequal: list[tuple[object, ...]] = []
        self.looks = 0

    def look(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        try:
            left, right = connection.execute(_SUMS).fetchone() or (None, None)
        except psycopg.errors.UndefinedTable:
            return  # the worker has not created them yet
        self.looks += 1
        if left != right:
            self.unequal.append((left, right))
