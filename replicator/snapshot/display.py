"""How far a copy is and how fast, shown to people: bars on a terminal, a log line now and then otherwise."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.shared import telemetry
from pgsluice.shared.broker.ledger import Phase, TableRecord

LOG_INTERVAL_S = 10.0
REFRESH_INTERVAL_S = 0.25
MOST_BARS = 8  # for tables; with hundreds of them a terminal has no room for all

log = telemetry.logger(__name__)


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
    """Figures of the tables that this run copies: those of ``finished_before`` are left out."""
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
