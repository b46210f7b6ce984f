"""A sink as somebody else would write it: JSON lines in an SQLite file, exactly once, because lines and position move together.

pgsluice worker tests.worker.sinks.sqlite_sink:SqliteSink --sink-option path=changes.db

``SqliteTables`` holds the rows too, in tables that are altered where the source's were.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping

from pgsluice import (
    NOTHING_APPLIED,
    Applied,
    ColumnAdded,
    ColumnDropped,
    ColumnRenamed,
    CopiedRows,
    DefinitionUse,
    Delivery,
    MessageChanges,
    Partition,
    Position,
    PublishedDefinition,
    Receipt,
    TableDefined,
    TablePublished,
    TableRenamed,
    TerminalError,
    WorkerSettings,
    differences_of,
    encode_copied,
    encode_lines,
)

TABLES = """
CREATE TABLE IF NOT EXISTS lines (line);
CREATE TABLE IF NOT EXISTS position (worker PRIMARY KEY, applied);
"""


class LineWriter:
    """Runs in Spark tasks: a partition's lines are its receipt."""

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        yield b"".join(line for message in messages for line in encode_lines(message))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        yield b"".join(line for rows in copied for line in encode_copied(rows))


class SqliteSink:
    delivery = Delivery.STREAMED  # receipts hold the output itself
    definitions = DefinitionUse.PASSES_ON  # as lines
    keeps_catch_up = True  # with the rest of Applied

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
                if not applied.covers(receipt):  # the same batch may come twice
                    self._take(receipt.body.decode().split("\n")[:-1])
                    applied = applied.after(receipt, stream_created)
            self._store(applied)
        self._applied = applied
        return applied

    def _take(self, lines: list[str]) -> None:
        self._database.executemany("INSERT INTO lines VALUES (?)", zip(lines, strict=True))

    def _store(self, applied: Applied) -> None:
        self._database.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", [self._name, applied.encode()])

    def _position(self) -> Applied:
        row = self._database.execute("SELECT applied FROM position WHERE worker = ?", [self._name]).fetchone()
        return Applied.decode(row[0]) if row else NOTHING_APPLIED

    def finish_copy(self) -> None: ...

    def close(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()


class SqliteTables(SqliteSink):
    """A table for each of the source's, with the rows that were inserted there."""

    def apply_ddl(self, definition: PublishedDefinition, position: Position) -> None:
        """Within the transaction of ``commit``, which takes one receipt after the other."""
        if position.commit_lsn <= self._applied.commit_lsn:
            return  # the same batch may come twice
        match definition.event:
            case TableDefined(table=table) | TablePublished(table=table):
                for difference in differences_of(definition):
                    self._alter(table.name, difference)
            case _:
                pass  # a table that goes stays here

    def _alter(self, table: str, difference: object) -> None:
        match difference:
            case TableRenamed(was, now):
                self._execute(f'"{was[1]}" RENAME TO "{now[1]}"')
            case ColumnAdded(column):
                default = "NULL" if column.missing is None else "'" + column.missing.replace("'", "''") + "'"
                self._execute(f'"{table}" ADD COLUMN "{column.name}" DEFAULT {default}')
            case ColumnRenamed(was, now):
                self._execute(f'"{table}" RENAME COLUMN "{was.name}" TO "{now.name}"')
            case ColumnDropped(column):
                self._execute(f'"{table}" DROP COLUMN "{column.name}"')
            case _:
                pass  # SQLite takes any value in any column

    def _execute(self, what: str) -> None:
        self._database.execute("ALTER TABLE " + what)

    def _take(self, lines: list[str]) -> None:
        super()._take(lines)
        for line in map(json.loads, lines):
            if line["operation"] in ("INSERT", "READ"):
                names = ", ".join(f'"{name}"' for name in line["after"])
                marks = ", ".join("?" for _ in line["after"])
                self._database.execute(f'CREATE TABLE IF NOT EXISTS "{line["table"]}" ({names})')
                self._database.execute(f'INSERT INTO "{line["table"]}" ({names}) VALUES ({marks})', [*line["after"].values()])
