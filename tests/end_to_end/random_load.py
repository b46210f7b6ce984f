"""A random write load whose invariants a reader of the target can check at any moment.

Tables: ``left_side`` and ``right_side`` (every transaction adds the same amount to both, so their sums are equal at each commit),
``items`` (composite key, key changes, TOAST values that updates leave alone), ``tickets`` (replica identity by index) and
``journal`` (no key, replica identity full, duplicate rows allowed).
"""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Self

import psycopg

from tests.servers import Database

TABLES = ("left_side", "right_side", "items", "tickets", "journal")
ACCOUNTS = 500
MAXIMUM_ROWS = 5000

_SCHEMA = """
CREATE TABLE left_side (id int PRIMARY KEY, amount bigint NOT NULL);
CREATE TABLE right_side (LIKE left_side INCLUDING ALL);
CREATE TABLE items (area int, code text, payload text, note text, PRIMARY KEY (area, code));
ALTER TABLE items ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE tickets (number bigint NOT NULL, subject text, done boolean);
CREATE UNIQUE INDEX tickets_number ON tickets (number);
ALTER TABLE tickets REPLICA IDENTITY USING INDEX tickets_number;
CREATE TABLE journal (entry text, at timestamptz);
ALTER TABLE journal REPLICA IDENTITY FULL;
CREATE SEQUENCE number;
"""

_ACCOUNTS = "INSERT INTO {} SELECT n, 0 FROM generate_series(1, %s) n"

_BALANCED = """
WITH amounts AS (
    SELECT 1 + (random() * {accounts})::int % {accounts} AS id, (random() * 100)::int AS amount FROM generate_series(1, {rows})
), added AS (
    UPDATE left_side l SET amount = l.amount + a.amount
    FROM (SELECT id, sum(amount) AS amount FROM amounts GROUP BY id) a WHERE a.id = l.id RETURNING a.amount
)
UPDATE right_side SET amount = amount + (SELECT coalesce(sum(amount), 0) FROM added) WHERE id = {one}
"""

_RANDOM_TEXT = "md5(random()::text)"
_SOME_ITEMS = "(area, code) IN (SELECT area, code FROM items LIMIT {some})"
_FEW_ITEMS = "(area, code) IN (SELECT area, code FROM items WHERE length(code) < 30 LIMIT {few})"
_SOME_TICKETS = "number IN (SELECT number FROM tickets LIMIT {some})"
_TWO_ENTRIES = "ctid IN (SELECT ctid FROM journal LIMIT 2)"

_STATEMENTS = (
    "INSERT INTO items SELECT {one} % 7, 'c' || nextval('number'), "
    f"repeat({_RANDOM_TEXT}, 120), 'new' FROM generate_series(1, {{some}})",
    f"UPDATE items SET note = {_RANDOM_TEXT} WHERE {_SOME_ITEMS}",
    f"UPDATE items SET payload = repeat({_RANDOM_TEXT}, 110) WHERE {_FEW_ITEMS}",
    f"UPDATE items SET code = code || 'x' WHERE {_FEW_ITEMS}",
    f"DELETE FROM items WHERE {_FEW_ITEMS}",
    "INSERT INTO tickets SELECT nextval('number'), repeat('s', 20), false FROM generate_series(1, {rows})",
    f"UPDATE tickets SET done = NOT done WHERE {_SOME_TICKETS}",
    "UPDATE tickets SET number = nextval('number') WHERE number IN (SELECT number FROM tickets LIMIT {few})",
    f"DELETE FROM tickets WHERE {_SOME_TICKETS}",
    "INSERT INTO journal SELECT 'entry ' || (random() * 9)::int, now() FROM generate_series(1, {few})",
    f"UPDATE journal SET entry = entry || '!' WHERE {_TWO_ENTRIES}",
    f"DELETE FROM journal WHERE {_TWO_ENTRIES}",
)


class RandomLoad:
    """``connections`` threads write until ``stop``, or until the context is left; ``stop`` raises an error of theirs. What they
    write is reproducible up to how they interleave. ``most_rows`` bounds a statement; with ``reconnects`` the server may go away;
    while ``held`` is set nothing is written."""

    def __init__(
        self, database: Database, seed: int, connections: int = 3, most_rows: int = MAXIMUM_ROWS, *, reconnects: bool = False
    ) -> None:
        self._database = database
        self._most_rows = most_rows
        self._reconnects = reconnects
        self.held = threading.Event()
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self.transactions = 0
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(seed + i),), daemon=True) for i in range(connections)
        ]

    @staticmethod
    def create_tables(database: Database) -> None:
        with database.connect() as connection:
            connection.execute(_SCHEMA)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopping.set()

    def start(self) -> None:
        """The accounts come first, in one transaction: without a copy, a group carries only what happens after it began."""
        with self._database.connect(autocommit=False) as connection:
            for side in ("left_side", "right_side"):
                connection.execute(_ACCOUNTS.format(side), [ACCOUNTS])
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _write(self, choose: random.Random) -> None:
        while not self._stopping.is_set():
            try:
                self._write_connected(choose)
            except psycopg.Error as error:
                if not (self._reconnects and isinstance(error, psycopg.OperationalError)):
                    self._errors.append(error)
                    return
                self._stopping.wait(0.2)

    def _write_connected(self, choose: random.Random) -> None:
        with self._database.connect(autocommit=False) as connection:
            while not self._stopping.is_set():
                if not self.held.is_set():
                    self._transaction(connection, choose)
                self._stopping.wait(choose.expovariate(20))

    def _transaction(self, connection: psycopg.Connection[tuple[object, ...]], choose: random.Random) -> None:
        rows = int(self._most_rows ** choose.random())
        sizes = {
            "rows": rows,
            "few": min(rows, 5),
            "some": min(rows, 300),
            "one": choose.randint(1, ACCOUNTS),
            "accounts": ACCOUNTS,
        }
        try:
            for _ in range(choose.randint(1, 3)):
                connection.execute(choose.choice(_STATEMENTS).format(**sizes))
            connection.execute(_BALANCED.format(**sizes))
            connection.execute("INSERT INTO journal SELECT 'done', now()")
            if choose.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                self.transactions += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            connection.rollback()  # two of our own threads met on the same rows


def checksum(database: Database, table: str) -> tuple[object, ...]:
    """Number of rows and a sum over them that does not depend on their order, but counts every duplicate."""
    return database.execute(f"SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {table} t")[0]


def checksums(database: Database) -> dict[str, tuple[object, ...]]:
    return {table: checksum(database, table) for table in TABLES}
