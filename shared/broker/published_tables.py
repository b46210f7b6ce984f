"""The tables that a group publishes, under ``tables`` in the state bucket.

The replicator writes them when its tables are chosen, from the source's catalog, and again before it publishes a row of
a table that differs from the record. Workers check their rules and routes against the record, and notebooks take their
columns from it. Only a change's own message describes the change: the table may have been altered since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.record import malformed, pack, unpack
from pgsluice.shared.wire.table import Table

TABLES_KEY = "tables"
UNCHECKED = "SQL_ASCII"
"""The encoding of a database that takes any bytes, and whose server converts none."""


@dataclass(frozen=True, slots=True)
class PublishedTables:
    """``names`` are for readers, ``descriptors`` for workers. ``encoding`` is the source database's."""

    names: tuple[str, ...]
    descriptors: str
    encoding: str = ""

    MALFORMED_REMEDY: ClassVar[str] = "start the replicator again: it writes the record again"


async def store_tables(bucket: StateBucket, tables: Sequence[Table], encoding: str) -> None:
    """Writes the record. ``encoding`` is the source database's. Raises TransientError when NATS does not answer."""
    await bucket.put(TABLES_KEY, _record(tables, encoding))


def _record(tables: Sequence[Table], encoding: str) -> PublishedTables:
    names = sorted(table.qualified_name for table in tables)
    return PublishedTables(tuple(names), pack([table.encode() for table in tables]), encoding)


class SeenTables:
    """Keeps the record at the tables as the stream describes them. The caller passes each described table to ``note``, and calls
    ``flush``, which writes the tables that differ from the record, before it publishes anything of them."""

    def __init__(self, bucket: StateBucket, recorded: Sequence[Table]) -> None:
        self._bucket = bucket
        self._told = {table.oid: table for table in recorded}
        self._news: dict[int, Table] = {}

    @classmethod
    async def load(cls, bucket: StateBucket) -> SeenTables:
        """Reads the record. Raises as ``flush``."""
        return cls(bucket, await load_tables(bucket) or ())

    def note(self, table: Table) -> None:
        told = self._told.get(table.oid)
        if told is None or _differs(told, table):
            self._told[table.oid] = self._news[table.oid] = table

    async def flush(self) -> None:
        """Writes the news of tables that are in the record: the others are no members of the group, or ``store_tables`` adds them
        when they are. Raises TransientError, or TerminalError for a record that ``store_tables`` does not make."""
        while self._news:
            entry = await self._bucket.read(TABLES_KEY, PublishedTables)
            if entry is None:
                return
            tables = _decoded(entry.value, self._bucket)
            now = [self._now(table) for table in tables]
            if now == tables or await self._bucket.update(TABLES_KEY, _record(now, entry.value.encoding), entry.revision):
                self._news.clear()

    def _now(self, told: Table) -> Table:
        table = self._news.get(told.oid, told)
        return table if _differs(told, table) else told


def _differs(told: Table, now: Table) -> bool:
    """Returns whether columns or names differ, or a column's number differs from the one in ``told``; 0 means unknown."""
    if _shape(told) != _shape(now):
        return True
    return any(column.number not in (0, before.number) for before, column in zip(told.columns, now.columns, strict=True))


def _shape(table: Table) -> object:
    columns = [(column.name, column.type_oid, column.typmod, column.identity_key) for column in table.columns]
    return table.schema, table.name, table.replica_identity, columns


async def is_text_unchecked(bucket: StateBucket) -> bool | None:
    """Returns whether the source database can hold text that is not UTF-8. None before a replicator has reported."""
    entry = await bucket.read(TABLES_KEY, PublishedTables)
    return None if entry is None else entry.value.encoding == UNCHECKED


async def load_tables(bucket: StateBucket) -> list[Table] | None:
    """Returns None before a replicator has written the record. Raises TerminalError for a record that ``store_tables`` does not
    make."""
    entry = await bucket.read(TABLES_KEY, PublishedTables)
    return None if entry is None else _decoded(entry.value, bucket)


def _decoded(record: PublishedTables, bucket: StateBucket) -> list[Table]:
    try:
        return [Table.decode(descriptor) for descriptor in unpack(record.descriptors)]
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(TABLES_KEY, bucket.described, type(error).__name__, PublishedTables.MALFORMED_REMEDY) from None
