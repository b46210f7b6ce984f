"""The tables that a group publishes, under ``tables`` in the state bucket.

The replicator writes them at each start, from the source's catalog; workers check their rules and routes against them. What a
change looks like is said by its message alone: a table may have been altered since either.
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
    """``names`` are for people, ``descriptors`` for workers. ``encoding`` is that of the source database."""

    names: tuple[str, ...]
    descriptors: str
    encoding: str = ""

    MALFORMED_REMEDY: ClassVar[str] = "start the replicator again: it writes the record again"


async def store_tables(bucket: StateBucket, tables: Sequence[Table], encoding: str) -> None:
    """``encoding`` is that of the source database. Raises TransientError when NATS does not answer."""
    names = sorted(table.qualified_name for table in tables)
    descriptors = pack([table.encode() for table in tables])
    await bucket.put(TABLES_KEY, PublishedTables(tuple(names), descriptors, encoding))


async def is_text_unchecked(bucket: StateBucket) -> bool | None:
    """Whether the source database may hold text that is not UTF-8. None before a replicator has told."""
    entry = await bucket.read(TABLES_KEY, PublishedTables)
    return None if entry is None else entry.value.encoding == UNCHECKED


async def load_tables(bucket: StateBucket) -> list[Table] | None:
    """None before a replicator has told. Raises TerminalError for a record that ``store_tables`` does not make."""
    entry = await bucket.read(TABLES_KEY, PublishedTables)
    if entry is None:
        return None
    try:
        return [Table.decode(descriptor) for descriptor in unpack(entry.value.descriptors)]
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(TABLES_KEY, bucket.described, type(error).__name__, PublishedTables.MALFORMED_REMEDY) from None
