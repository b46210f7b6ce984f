"""A sink as somebody else would write it: JSON lines in an SQLite file, exactly once, because lines and position move together.

pgsluice worker tests.worker.sinks.sqlite_sink:SqliteSink --sink-option path=changes.db
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple

from pgsluice import (
    NOTHING_APPLIED,
    Applied,
    CopiedRows,
    Delivery,
    MessageChanges,
    Partition,
    Receipt,
    TerminalError,
    WorkerSettings,
    encode_copied,
    encode_lines,
)

TABLES = """
CREATE TABLE IF NOT EXISTS lines (line);
CREATE TABLE IF NOT EXISTS position (worker PRIMARY KEY, sequence, lsn, at, created, copy, rules);
"""


class LineWriter:
    """Runs in Spark tasks: a partition's lines are its receipt."""

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        yield b"".join(line for message in messages for line in encode_lines(message))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        yield b"".join(line for rows in copied for line in encode_copied(rows))


class SqliteSink:
    delivery = Delivery.STREAMED  # receipts hold the output itself

    def __init__(self, settings: WorkerSettings, options: Mapping[str, str]) -> None:
        self._name, self._path = settings.name, options["path"]

    def open(self) -> Applied:
        self._database = sqlite3.connect(self._path, check_same_thread=False)  # commit comes from one of Spark's threads
        self._database.executescript(TABLES)
        self._applied = self._position()
        return self._applied

    def renumber(self, applied: Applied) -> None:
        with self._database:
            self._store(applied)
        self._applied = applied

    def writer(self) -> LineWriter:
        return LineWriter()

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        applied = self._applied
        with self._database:  # one transaction, rolled back by any error
            self._database.execute("BEGIN IMMEDIATE")
            if self._position() != applied:
                raise TerminalError(f"the position of worker '{self._name}' was moved by another process", "stop one of them")
            for receipt in receipts:
                if receipt.last_sequence > applied.last_sequence(copied=receipt.copied):  # the same batch may come twice
                    lines = receipt.body.decode().split("\n")[:-1]
                    self._database.executemany("INSERT INTO lines VALUES (?)", zip(lines, strict=True))
                    applied = applied.after(receipt, stream_created)
            self._store(applied)
        self._applied = applied
        return applied

    def _store(self, applied: Applied) -> None:
        row = (self._name, *astuple(applied))
        self._database.execute("INSERT OR REPLACE INTO position VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _position(self) -> Applied:
        row = self._database.execute("SELECT * FROM position WHERE worker = ?", [self._name]).fetchone()
        return Applied(*row[1:]) if row else NOTHING_APPLIED

    def finish_copy(self) -> None: ...

    def close(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()
