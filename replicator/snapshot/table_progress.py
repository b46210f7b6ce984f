"""How far the tables of a copy are, and the ledger as it follows them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome
from pgsluice.replicator.tasks import repeat
from pgsluice.shared import telemetry
from pgsluice.shared.broker.ledger import Ledger, Phase, TableRecord
from pgsluice.shared.errors import PgsluiceError

WRITE_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


class TableProgress:
    """The ledger is written by ``write`` only: what was noted since the last time, whole records."""

    def __init__(self, ledger: Ledger, records: Iterable[TableRecord]) -> None:
        self._ledger = ledger
        self._records = {record.oid: record for record in records}
        self._unwritten: set[int] = set()
        self._revisions: dict[int, int] = {}
        self._pages_bytes = dict.fromkeys(self._records, 0)

    @property
    def records(self) -> list[TableRecord]:
        return list(self._records.values())

    @property
    def waiting(self) -> list[TableRecord]:
        return [record for record in self._records.values() if record.phase.is_waiting_for_copy]

    @property
    def errored(self) -> list[TableRecord]:
        return [record for record in self._records.values() if record.phase is Phase.ERRORED]

    def written_revision(self, oid: int) -> int:
        """Of the table's record as it was written last; it must have been."""
        return self._revisions[oid]

    def copied_page_bytes(self, oid: int) -> int:
        """Bytes of the pages of the table's finished ranges; compares with ``bytes_total``."""
        return self._pages_bytes[oid]

    def put(self, record: TableRecord) -> None:
        """The table is as ``record`` says."""
        self._records[record.oid] = record
        self._pages_bytes[record.oid] = 0
        self._unwritten.add(record.oid)

    def note_begun(self, oid: int) -> None:
        """The table's begin message is stored; that is all of a partitioned table without partitions."""
        self._advance(self._records[oid])

    def note_done(self, outcome: RangeOutcome) -> None:
        """A range is stored; with the last one the table's copy is finished."""
        record = self._records[outcome.pages.table_oid]
        if record.phase is not Phase.DATA_SYNC:
            return
        self._pages_bytes[record.oid] += outcome.pages.size_bytes
        self._advance(
            replace(
                record, rows=record.rows + outcome.rows, bytes=record.bytes + outcome.bytes, ranges_done=record.ranges_done + 1
            )
        )

    def _advance(self, record: TableRecord) -> None:
        if record.ranges_done == record.ranges:
            record = record.enter(Phase.FINISHED_COPY)
            log.info("table is copied", table=record.qualified_name, rows=record.rows, bytes=record.bytes, lsn=record.lsn)
        self._records[record.oid] = record
        self._unwritten.add(record.oid)

    def note_errored(self, oid: int, error: PgsluiceError) -> None:
        """The table is given up; the others go on."""
        record = self._records[oid]
        if record.phase is Phase.ERRORED:
            return
        log.error("table cannot be copied", table=record.qualified_name, error=error.fact, remedy=error.remedy)
        self._records[oid] = record.enter(Phase.ERRORED, error=error.fact, remedy=error.remedy)
        self._unwritten.add(oid)

    async def write(self) -> None:
        """Raises TransientError when the broker does not answer; then what is not written stays noted."""
        for oid in list(self._unwritten):
            record = self._records[oid]
            self._revisions[oid] = await self._ledger.store_table(record)
            if self._records[oid] is record:
                self._unwritten.discard(oid)

    async def run(self) -> None:
        """Writes at least every WRITE_INTERVAL_S while there is something to write, until it is cancelled."""
        await asyncio.sleep(WRITE_INTERVAL_S)
        await repeat(self.write, WRITE_INTERVAL_S, "the ledger is not written now")
