"""Progress of a copy's tables, the ledger as it follows them, and its display.

Users see bars on a terminal, and otherwise a log line periodically.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome
from pgsluice.replicator.tasks import repeat
from pgsluice.shared import telemetry
from pgsluice.shared.broker.ledger import Ledger, Phase, Retry, TableRecord
from pgsluice.shared.errors import PgsluiceError, SlotTimeoutError, TransientError
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Pauses

WRITE_INTERVAL_S = 1.0

LOG_INTERVAL_S = 10.0
REFRESH_INTERVAL_S = 0.25
MOST_BARS = 8  # for tables; with hundreds a terminal has no room for all

log = telemetry.logger(__name__)


class TableProgress:
    """The ledger is written by ``write`` only: whole records with all changes since the last time. ``tries_again``:
    tables that are errored for a passing cause are retried."""

    def __init__(
        self,
        ledger: Ledger,
        records: Iterable[TableRecord],
        *,
        tries_again: bool = True,
        pauses: Pauses = DEFAULT_POLICY.copied_table,
    ) -> None:
        self._ledger = ledger
        self._pauses = pauses
        self._tries_again = tries_again
        self._records = {record.oid: record for record in records}
        self._unwritten: set[int] = set()
        self._revisions: dict[int, int] = {}
        self._pages_bytes = dict.fromkeys(self._records, 0)
        self._last_sequences: dict[int, int] = {}
        self.ranges_done = 0
        """Number of all tables' finished ranges, in this process."""
        self._writing = asyncio.Lock()  # or a record could be overtaken by the one that it replaces

    @property
    def records(self) -> list[TableRecord]:
        return list(self._records.values())

    @property
    def waiting(self) -> list[TableRecord]:
        return [record for record in self._records.values() if record.phase.is_waiting_for_copy]

    @property
    def errored(self) -> list[TableRecord]:
        return [record for record in self._records.values() if record.phase is Phase.ERRORED]

    def get(self, oid: int) -> TableRecord | None:
        """Returns None for a table that is not of this copy."""
        return self._records.get(oid)

    def is_copying(self, oid: int) -> bool:
        """Returns whether a round copies the table. It may have left, or wait for another round, since that began."""
        record = self._records.get(oid)
        return record is not None and record.phase is Phase.DATA_SYNC

    def written_revision(self, oid: int) -> int:
        """Returns the revision of the table's record as it was written last; it must have been."""
        return self._revisions[oid]

    def copied_page_bytes(self, oid: int) -> int:
        """Returns bytes of the pages of the table's finished ranges; compares with ``bytes_total``."""
        return self._pages_bytes[oid]

    def put(self, record: TableRecord) -> None:
        """Stores ``record`` as the table's state."""
        self._records[record.oid] = record
        self._pages_bytes[record.oid] = 0
        self._last_sequences[record.oid] = 0
        self._unwritten.add(record.oid)

    def note_begun(self, oid: int, sequence: int) -> None:
        """Notes that the table's begin message is stored at ``sequence``; that is all of a partitioned table without
        partitions."""
        if self.is_copying(oid):
            self._last_sequences[oid] = sequence
            self._advance(self._records[oid])

    def note_done(self, outcome: RangeOutcome) -> None:
        """Notes that a range is stored; with the last one the table's copy is finished."""
        if not self.is_copying(outcome.pages.table_oid):
            return
        record = self._records[outcome.pages.table_oid]
        self.ranges_done += 1
        self._pages_bytes[record.oid] += outcome.pages.size_bytes
        self._last_sequences[record.oid] = max(self._last_sequences.get(record.oid, 0), outcome.last_sequence)
        self._advance(
            replace(
                record, rows=record.rows + outcome.rows, bytes=record.bytes + outcome.bytes, ranges_done=record.ranges_done + 1
            )
        )

    def _advance(self, record: TableRecord) -> None:
        if record.ranges_done == record.ranges:
            record = record.enter(Phase.FINISHED_COPY, last_sequence=self._last_sequences.get(record.oid, 0), failures=0)
            log.info("table is copied", table=record.qualified_name, rows=record.rows, bytes=record.bytes, lsn=record.lsn)
        self._records[record.oid] = record
        self._unwritten.add(record.oid)

    def note_errored(self, oid: int, error: PgsluiceError, retry: Retry | None = None) -> None:
        """Notes that the table's copy failed; the others continue. It is retried after a while if the cause can be
        transient, unless ``retry`` demands otherwise."""
        record = self._records[oid]
        if not record.phase.is_waiting_for_copy:
            return
        failures = record.failures + 1
        if retry is None:
            passes = self._tries_again and isinstance(error, TransientError | SlotTimeoutError)
            retry = Retry.TIMED if passes else Retry.MANUAL
        pause = timedelta(seconds=self._pauses.after(failures))
        retry_at = (datetime.now(UTC) + pause).isoformat(timespec="seconds") if retry is Retry.TIMED else ""
        log.error(
            "table cannot be copied",
            table=record.qualified_name,
            error=error.fact,
            remedy=error.remedy,
            **({"retry_at": retry_at} if retry_at else {}),
        )
        self._records[oid] = record.enter(
            Phase.ERRORED, error=error.fact, remedy=error.remedy, retry=retry, retry_at=retry_at, failures=failures
        )
        self._unwritten.add(oid)

    async def forget(self, oid: int) -> None:
        """Removes the table's record, here and in the ledger."""
        async with self._writing:
            self._records.pop(oid, None)
            self._unwritten.discard(oid)
            await self._ledger.remove_table(oid)

    async def write(self) -> None:
        """Raises TransientError when the broker does not answer; then what is not written stays noted."""
        async with self._writing:
            for oid in list(self._unwritten):
                record = self._records[oid]
                self._revisions[oid] = await self._ledger.store_table(record)
                if self._records[oid] is record:
                    self._unwritten.discard(oid)

    async def run(self) -> None:
        """Writes at least every WRITE_INTERVAL_S while there is something to write, until it is cancelled."""
        await asyncio.sleep(WRITE_INTERVAL_S)
        await repeat(self.write, WRITE_INTERVAL_S, "the table state store cannot be written now")


@dataclass(frozen=True, slots=True)
class Figures:
    """``pages_done`` and ``pages_total`` are bytes of pages, ``bytes`` bytes of COPY text. Rates are those since the start."""

    tables: int
    tables_done: int
    tables_errored: int
    rows: int
    bytes: int
    pages_done: int
    pages_total: int
    elapsed_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def percent(self) -> float:
        return 100.0 * self.pages_done / self.pages_total if self.pages_total else 0.0

    @property
    def remaining_s(self) -> float | None:
        """None before anything is done."""
        if not self.pages_done:
            return None
        return self.elapsed_s * (self.pages_total - self.pages_done) / self.pages_done


def measure(progress: TableProgress, finished_before: frozenset[int], elapsed_s: float) -> Figures:
    """Returns figures of the tables that this run copies: those of ``finished_before`` are left out."""
    records = [record for record in progress.records if record.oid not in finished_before]
    copied = [record for record in records if record.phase in (Phase.DATA_SYNC, Phase.FINISHED_COPY)]
    return Figures(
        tables=len(records),
        tables_done=sum(record.phase is Phase.FINISHED_COPY for record in records),
        tables_errored=sum(record.phase is Phase.ERRORED for record in records),
        rows=sum(record.rows for record in copied),
        bytes=sum(record.bytes for record in copied),
        pages_done=sum(progress.copied_page_bytes(record.oid) for record in copied),
        pages_total=sum(record.bytes_total for record in copied),
        elapsed_s=elapsed_s,
    )


async def show_progress(progress: TableProgress) -> None:
    """Runs until it is cancelled."""
    finished_before = frozenset(record.oid for record in progress.records if not record.phase.is_waiting_for_copy)
    started = time.monotonic()

    def look() -> Figures:
        return measure(progress, finished_before, time.monotonic() - started)

    if sys.stderr.isatty():
        with _bars() as bars:
            while True:
                bars.show(look(), progress)
                await asyncio.sleep(REFRESH_INTERVAL_S)
    while True:
        await asyncio.sleep(LOG_INTERVAL_S)
        log_figures("copying", look())


def log_figures(event: str, figures: Figures) -> None:
    log.info(
        event,
        tables=f"{figures.tables_done}/{figures.tables}",
        errored=figures.tables_errored,
        rows=figures.rows,
        rows_per_s=round(figures.rows_per_s),
        mb_per_s=round(figures.bytes_per_s / 1e6, 1),
        percent=round(figures.percent, 1),
        eta_s="unknown" if figures.remaining_s is None else round(figures.remaining_s),
    )


class _Bars:
    """One bar for the whole copy and one for each of the tables being copied."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._total = bars.add_task("all tables", total=None, figures="")
        self._tables: dict[int, TaskID] = {}

    def show(self, figures: Figures, progress: TableProgress) -> None:
        speed = f"{figures.rows_per_s:,.0f} rows/s  {figures.bytes_per_s / 1e6:,.1f} MB/s  {figures.rows:,} rows"
        self._bars.update(
            self._total,
            description=f"{figures.tables_done}/{figures.tables} tables",
            total=figures.pages_total or None,
            completed=figures.pages_done,
            figures=speed,
        )
        copied = [record for record in progress.records if record.phase is Phase.DATA_SYNC and record.ranges_done]
        shown = {record.oid: record for record in sorted(copied, key=lambda record: -record.bytes_total)[:MOST_BARS]}
        for oid in self._tables.keys() - shown.keys():
            self._bars.remove_task(self._tables.pop(oid))
        for oid, record in shown.items():
            self._show_table(oid, record, progress.copied_page_bytes(oid))

    def _show_table(self, oid: int, record: TableRecord, pages_done: int) -> None:
        if oid not in self._tables:
            self._tables[oid] = self._bars.add_task(record.qualified_name, figures="")
        self._bars.update(
            self._tables[oid],
            total=record.bytes_total,
            completed=pages_done,
            figures=f"{record.ranges_done}/{record.ranges} ranges  {record.rows:,} rows",
        )


@contextmanager
def _bars() -> Iterator[_Bars]:
    """Bars at the bottom of the terminal; the log is written above them meanwhile."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),  # a table's name and its figures are worth more of a terminal's width
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        streams = [handler.setStream(sys.stderr) for handler in handlers]  # rich has put its own there
        try:
            yield _Bars(bars)
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                if stream is not None:
                    handler.setStream(stream)
