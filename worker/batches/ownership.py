"""Decides which source a change belongs to: the copy, which holds it already, or the change stream.

The copy of a table holds exactly the transactions whose commit record begins before the table's LSN (the consistent
point of the slot that exported the snapshot). A transaction that begins to commit right at that LSN is the first that
it does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyState, Ledger, LedgerContent, Phase, TableRecord
from pgsluice.shared.rows.changes import DefinitionChange, MessageChanges, Part, TableChanges, Transaction, Truncation
from pgsluice.shared.wire.definition import TableGone
from pgsluice.shared.wire.position import parse_lsn
from pgsluice.shared.wire.published_definition import PublishedDefinition, concerned
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.sink import Lane

EVERYTHING = 1 << 64  # above any LSN


@dataclass(frozen=True, slots=True)
class Copy:
    """``snapshot`` is the valid one, "" before there is one. Changes that commit before ``lsn`` are the copy's: all of
    them, when the table is not copied (yet, or because that failed). ``revision`` is the ledger record's."""

    snapshot: str
    lsn: int
    revision: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Ownership:
    """``copies`` is by oid; a table that is not in it was never copied, and all its changes are the stream's. ``revision`` is the
    ledger's as a whole. Changes of any table that commit before ``applied_before`` were applied in an earlier life of the stream.
    The tables of ``cohort`` are left out of the lane of all others, and alone in the one that catches up; there changes that
    commit before a table's LSN in ``borders`` are applied already. Picklable."""

    copies: Mapping[int, Copy]
    revision: int = 0
    applied_before: int = 0
    lane: Lane = Lane.CHANGES
    cohort: frozenset[int] = frozenset()
    borders: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: LedgerContent) -> Ownership:
        copies = {}
        for oid, table in ledger.tables.items():
            is_incomplete = table.phase.is_waiting_for_copy or table.phase is Phase.ERRORED
            lsn = EVERYTHING if is_incomplete or not table.lsn else parse_lsn(table.lsn)
            snapshot = "" if table.phase is Phase.ERRORED else table.snapshot
            copies[oid] = Copy(snapshot, lsn, ledger.revisions.get(oid, 0))
        return cls(copies, ledger.revision)

    @property
    def horizon(self) -> int:
        """No transaction that commits at this LSN or later belongs to a copy."""
        return max([self.applied_before, *(copy.lsn for copy in self.copies.values())])

    def is_copied(self, oid: int) -> bool:
        """Returns whether the table's copy exists, or is under way and its rows no longer belong to an earlier one."""
        copy = self.copies.get(oid)
        return copy is not None and copy.snapshot != "" and copy.lsn != EVERYTHING

    def counts(self, table: Table, snapshot: str) -> bool:
        """Returns whether rows that ``snapshot`` copied from ``table`` must be applied."""
        copy = self.copies.get(table.oid)
        return copy is not None and copy.snapshot == snapshot

    def knows(self, table: Table, ledger_revision: int) -> bool:
        """Returns whether this is as new as the ledger's revision ``ledger_revision`` of ``table``. Reads of the ledger
        should be new enough; a leader of the broker that was deposed and does not know it yet may answer one with an
        older state."""
        copy = self.copies.get(table.oid)
        return (self.revision if copy is None else copy.revision) >= ledger_revision

    def is_for(self, definition: PublishedDefinition) -> bool:
        """Returns whether the definition belongs to this lane; one without a table goes with the lane of all others."""
        about = concerned(definition.event)
        return (about is not None and about.oid in self.cohort) is (self.lane is Lane.CATCH_UP)

    def remainder(self, message: MessageChanges) -> MessageChanges:
        """Returns ``message`` without the changes that copies hold, or another lane takes. Positions and transactions
        stay. A definition that a copy holds stays too, marked ``is_copied``: copied rows do not contain it."""
        if not self.cohort and all(transaction.commit_lsn >= self.horizon for transaction in message.transactions):
            return message
        parts = [self._remainder(part, message.transactions) for part in message.parts]
        return replace(message, parts=[part for part in parts if part is not None])

    def _remainder(self, part: Part, transactions: list[Transaction]) -> Part | None:
        match part:
            case TableChanges():
                return self._remaining_rows(part, transactions)
            case Truncation():
                lsn = _commit_lsn(transactions, part.change_index)
                tables = tuple(table for table in part.tables if lsn >= self.copied_before(table))
                return replace(part, tables=tables) if tables else None
            case DefinitionChange(change_index=index):
                return self._remaining_definition(part, _commit_lsn(transactions, index))
            case unreachable:
                assert_never(unreachable)

    def _remaining_rows(self, part: TableChanges, transactions: list[Transaction]) -> TableChanges | None:
        border = self.copied_before(part.table)
        held = {i for i, transaction in enumerate(transactions) if transaction.commit_lsn < border}
        if not held:
            return part
        ranges = [range(transactions[i].first_change, transactions[i].end_change) for i in held]
        rows = [row for row, index in enumerate(part.change_indexes) if not any(index in changes for changes in ranges)]
        return part.select(rows) if rows else None

    def copied_before(self, table: Table) -> int:
        """Changes of ``table`` that commit before this LSN are the copy's."""
        return self._copied_before(table.oid)

    def _remaining_definition(self, part: DefinitionChange, commit_lsn: int) -> DefinitionChange | None:
        about = concerned(part.definition.event)
        oid = 0 if about is None else about.oid
        if commit_lsn < self._applied_before(oid):
            return None
        # A copy cannot show that its table is gone: the target may have rows of a table that was dropped while it was copied.
        # a single kind: a copy shows every other definition of its table
        is_gone = isinstance(part.definition.event, TableGone)
        return replace(part, is_copied=True) if not is_gone and commit_lsn < self._copied_before(oid) else part

    def _copied_before(self, oid: int) -> int:
        copy, applied_before = self.copies.get(oid), self._applied_before(oid)
        return applied_before if copy is None else max(applied_before, copy.lsn)

    def _applied_before(self, oid: int) -> int:
        if (oid in self.cohort) is not (self.lane is Lane.CATCH_UP):
            return EVERYTHING
        return max(self.applied_before, self.borders.get(oid, 0) if self.lane is Lane.CATCH_UP else 0)


NEVER_COPIED = Ownership({})


class OwnershipLedger:
    """The driver's view of the ledger, looked at again only when a copy runs or was begun since. Used on one event loop."""

    def __init__(self, bucket: StateBucket) -> None:
        self._ledger = Ledger(bucket)
        self._revision = 0
        self._content = LedgerContent(None, {})
        self._newest = NEVER_COPIED

    @property
    def newest(self) -> Ownership:
        """The ownership given to the newest batch."""
        return self._newest

    @property
    def content(self) -> LedgerContent:
        """The ledger as it was read last; the same object until it is read again."""
        return self._content

    async def after_copy(self) -> LedgerContent:
        """Returns ``content``, read again if the last copy is finished. Raises as ``current``."""
        entry = await self._ledger.snapshot_entry()
        if entry is not None and entry.value.state is CopyState.FINISHED:
            await self._refresh()
        return self._content

    async def current(self) -> Ownership:
        """Raises TransientError when NATS does not answer."""
        await self._refresh()
        return self._newest

    async def unready(self, snapshot_sequence: int) -> frozenset[int]:
        """Returns oids of tables whose copy is not whole, or has rows after that message of the snapshot stream. Raises
        as ``current``."""
        await self._refresh()
        content = self._content
        if content.snapshot is None:
            return frozenset()
        return frozenset(oid for oid, table in content.tables.items() if _last_copied(table, content) > snapshot_sequence)

    async def _refresh(self) -> None:
        entry = await self._ledger.snapshot_entry()
        if entry is None:
            self._revision, self._newest, self._content = 0, NEVER_COPIED, LedgerContent(None, {})
            return
        if entry.revision != self._revision or entry.value.state is CopyState.RUNNING:
            content, self._revision = await self._ledger.load(), entry.revision
            if content is not self._content:
                self._content, self._newest = content, Ownership.of(content)


def _last_copied(table: TableRecord, content: LedgerContent) -> int:
    """Returns the last message of the table's copied rows; EVERYTHING while that is not known."""
    if table.phase.is_waiting_for_copy:
        return EVERYTHING
    if table.phase is not Phase.FINISHED_COPY:
        return 0
    last = content.last_copied(table)
    return EVERYTHING if last is None else last


def _commit_lsn(transactions: list[Transaction], change_index: int) -> int:
    return next(t.commit_lsn for t in transactions if t.first_change <= change_index < t.end_change)
