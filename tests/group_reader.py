"""What the rows of a group's tables are by its streams alone: copied ones, and the changes that a copy does not hold.

The rules are the workers', in their simplest form: the ledger's snapshot counts, a change counts that commits at the table's LSN
or later. Tables have two columns, the first is their key.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import assert_never

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger, LedgerContent, Phase, TableRecord
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.messages import Begin, Delete, Insert, Truncate, Update
from pgsluice.shared.wire.message import MessageHeaders, split_body
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, parse_lsn
from tests.snapshot_audit import SnapshotAudit, audit_snapshot

FETCH_MESSAGES = 200
FETCH_BYTES = 16 * 1024 * 1024

Rows = dict[bytes, bytes]
"""Second column by first, as text."""

Change = tuple[LSN, Insert | Update | Delete | Truncate]
"""With the LSN that its transaction commits at."""


class GroupReader:
    """Reads all that there is of ``group``, once."""

    def __init__(self, nats: NatsSettings, group: str) -> None:
        self._nats = nats
        self._group = group
        self.ledger, self.changes = asyncio.run(self._read())

    def record(self, name: str) -> TableRecord:
        """The one record of a table of that name that did not leave."""
        [record] = [each for each in self.ledger.tables.values() if each.table == name and each.phase is not Phase.LEFT]
        return record

    def rows(self, name: str) -> Rows:
        """Of a table whose copy is finished; every row of it is where the ledger says."""
        return self.rows_of(self.record(name))

    def rows_of(self, record: TableRecord) -> Rows:
        assert record.phase is Phase.FINISHED_COPY, record
        assert self._copies.problems == []
        copy = self._copies.copy_of(record.snapshot, record.oid)
        assert copy.attempt == record.attempt
        assert sum(copy.rows.values()) == record.rows
        assert copy.last_sequence <= record.last_sequence
        rows = dict(line.split(b"\t") for line in copy.rows)
        lsn = parse_lsn(record.lsn)
        for commit_lsn, change in self.changes[record.oid]:
            if commit_lsn >= lsn:
                apply(rows, change)
        return rows

    @cached_property
    def _copies(self) -> SnapshotAudit:
        return audit_snapshot(self._nats, self._group)

    async def _read(self) -> tuple[LedgerContent, dict[int, list[Change]]]:
        changes: defaultdict[int, list[Change]] = defaultdict(list)
        async with connected(self._nats, "reader") as client:
            names = GroupNames(self._group)
            stream = ChangeStream(client, names)
            state = await stream.state()
            assert state is not None
            sequence, chunks = state.first_sequence, []
            while sequence <= state.last_sequence:
                for message in await stream.fetch(sequence, FETCH_MESSAGES, FETCH_BYTES):
                    sequence, headers = message.sequence + 1, MessageHeaders.decode(message.headers)
                    chunks.append(message.data)
                    if headers.chunk.is_last:
                        for oid, lsn, change in changes_of(headers.body(chunks)):
                            changes[oid].append((lsn, change))
                        chunks = []
            return await Ledger(StateBucket(client, names)).load(), changes


def changes_of(body: bytes) -> Iterator[tuple[int, LSN, Insert | Update | Delete | Truncate]]:
    """Each with the oid of its table and its commit LSN."""
    _, frames = split_body(body)
    lsn = LSN(0)
    for frame in frames:
        match decode_message(frame):
            case Begin(final_lsn=final_lsn):
                lsn = final_lsn
            case Insert() | Update() | Delete() as change:
                yield change.relation_oid, lsn, change
            case Truncate() as change:
                for oid in change.relation_oids:
                    yield oid, lsn, change
            case _:
                pass


def apply(rows: Rows, change: Insert | Update | Delete | Truncate) -> None:
    match change:
        case Insert(new=new):
            assert text(new[0]) not in rows, "a row comes twice"
            rows[text(new[0])] = text(new[1])
        case Update(old=old, new=new):
            rows.pop(text(old[0]) if old else text(new[0]), None)
            rows[text(new[0])] = text(new[1])
        case Delete(old=old):
            rows.pop(text(old[0]), None)
        case Truncate():
            rows.clear()
        case unreachable:
            assert_never(unreachable)


def text(value: object) -> bytes:
    assert isinstance(value, bytes | memoryview), value
    return bytes(value)
