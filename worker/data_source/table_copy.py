"""The rows that a table's copy read, for readers of the table's changes.

Changes that commit below the copy's LSN are in its rows. So the rows have the position (LSN, 0), before every change
that is read with them, and before the rows comes a row with the operation RESTART, which invalidates all rows of the
table read before. It reads the ledger and the snapshot stream, and writes nothing anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import Ledger, LedgerContent, Phase, TableRecord
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.errors import MissingMessagesError, TransientError, UsageError
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import parse_lsn
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from pgsluice.shared.wire.table import Table
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.planning import COPIED_MESSAGE_BYTES, PARTITION_BYTES, tile
from pgsluice.worker.batches.snapshot_reader import CopiedBody, SnapshotReader
from pgsluice.worker.sinks.lines.json_lines import as_changes


@dataclass(frozen=True, slots=True)
class CopyRange:
    """One task's part of a table's copy: its rows in these messages of the snapshot stream, where other tables have some, too.
    Picklable."""

    first_sequence: int
    last_sequence: int
    oid: int
    name: str
    snapshot: str
    lsn: int


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """The rows of one message, as inserts; None in the place of ``rows`` where the copy begins."""

    sequence: int
    table: Table
    rows: TableChanges | None
    size: int


def recopy_remedy(name: str) -> str:
    return f"have it copied: pgsluice tables resync {name}"


def find_copy(connection: BrokerConnection, oid: int, name: str) -> CopyRange:
    """Returns the place of the table's newest whole copy. Raises UsageError when it never was copied, TransientError
    while it is being copied, and MissingMessagesError when its rows are gone."""
    return connection.ask(_find_copy, connection.names, oid, name)


async def _find_copy(client: Client, names: GroupNames, oid: int, name: str) -> CopyRange:
    content = await Ledger(StateBucket(client, names)).load_tables([oid])
    record = content.tables.get(oid)
    if record is None:
        raise UsageError(f"table '{name}' was never copied", f"leave 'with-copy' away, or {recopy_remedy(name)}")
    last = _last_of(content, record)
    begin = await SnapshotStream(client, names).next_message_on(names.snapshot_begin_subject(record.snapshot, record.oid), 1)
    if begin is None:
        raise MissingMessagesError(
            f"the rows that the copy of table '{name}' read were removed, because every worker has applied them",
            recopy_remedy(name),
        )
    return CopyRange(begin.sequence, last, record.oid, name, record.snapshot, parse_lsn(record.lsn))


def _last_of(content: LedgerContent, record: TableRecord) -> int:
    if record.phase is Phase.ERRORED:
        raise UsageError(f"table '{record.qualified_name}' could not be copied: {record.error}", record.remedy)
    last = None if record.phase.is_waiting_for_copy else content.last_copied(record)
    if last is None or not record.snapshot or not record.lsn:
        # no cause: it waits for a process of pgsluice
        raise TransientError(
            f"table '{record.qualified_name}' is being copied", "read it again when 'pgsluice status' calls it ready"
        )
    return last


def ranges_of(copy: CopyRange, parallelism: int) -> list[CopyRange]:
    """Returns parts that tile the copy."""
    start = copy.first_sequence - 1
    size = (copy.last_sequence - start) * COPIED_MESSAGE_BYTES
    tiles = tile(start, copy.last_sequence, size, parallelism, PARTITION_BYTES)
    return [replace(copy, first_sequence=first, last_sequence=last) for first, last in tiles]


def copied_batches(connection: BrokerConnection, part: CopyRange) -> Iterator[CopiedBatch]:
    """Yields the table's rows in that part. Raises MissingMessagesError at a gap, WireError for what is no COPY text of
    the table."""
    for body in _bodies(connection, part):
        if body.headers.oid == part.oid and body.headers.snapshot == part.snapshot:
            table, data = split_snapshot_body(body.data)
            copied = body.copied_rows(table, data)
            if body.headers.is_begin or copied.rows:
                rows = None if body.headers.is_begin else as_changes(copied)
                yield CopiedBatch(body.sequence, table, rows, len(body.data))


def _bodies(connection: BrokerConnection, part: CopyRange) -> Iterator[CopiedBody]:
    try:
        yield from SnapshotReader(connection).bodies(part.first_sequence, part.last_sequence)
    except MissingMessagesError as missing:
        raise MissingMessagesError(
            f"rows that the copy of table '{part.name}' read were removed before they were read",
            recopy_remedy(part.name),
            missing.next_sequence,
        ) from None
