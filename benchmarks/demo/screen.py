"""What the demo shows: live figures in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmarks.demo.comparison import Comparison
from benchmarks.demo.copy_figures import CopyFigures, percent_copied
from benchmarks.demo.figures import Figures, Rates

PLAIN_INTERVAL_S = 2.0
MIB = 1024 * 1024
PLAIN_WIDTH = 130
ROW_WIDTH = 60


class Screen:
    """Says what happens, with the seconds since the demo began."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        self._began_at = time.monotonic()

    def say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._began_at
        self.console.print(Text(f"[{elapsed_s:5.1f} s] {text}"), soft_wrap=True)

    def show_comparison(self, comparisons: list[Comparison]) -> None:
        table = Table(title="Source and target by checksum")
        table.add_column("table")
        for heading in ("source rows", "target rows", "source checksum", "target checksum"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("")
        for each in comparisons:
            verdict = "[green]equal[/]" if each.is_equal else "[bold red]DIFFERENT[/]"
            counts = (f"{each.source.rows:,}", f"{each.target.rows:,}")
            table.add_row(each.table, *counts, each.source.shown, each.target.shown, verdict)
        self.console.print(table)

    def show_rows(self, table_name: str, rows: list[tuple[str, str]]) -> None:
        table = Table(title=f"{table_name}: three rows", title_justify="left", expand=False)
        table.add_column("source", no_wrap=True)
        table.add_column("target", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(_shortened(side)) for side in row))
        self.console.print(table)


def _shortened(row: str) -> str:
    return row if len(row) <= ROW_WIDTH else row[: ROW_WIDTH - 1] + "…"


class LiveArea:
    """A context in which the newest figures stay in one place of the terminal; elsewhere there is none (``is_plain``)."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._live = Live(console=screen.console, auto_refresh=False) if screen.console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)

    @property
    def is_plain(self) -> bool:
        return self._live is None

    def update(self, table: Table) -> None:
        """Shows ``table`` in the place of what was there."""
        if self._live is not None:
            self._live.update(table, refresh=True)


class LiveCopy:
    """Shows how far the copy is; in plain lines, whenever the ledger says something new and every PLAIN_INTERVAL_S."""

    def __init__(self, area: LiveArea) -> None:
        self._area = area
        self._plain: CopyFigures | None = None

    def show(self, figures: CopyFigures, written: int) -> None:
        if not self._area.is_plain:
            self._area.update(_copy_table(figures, written))
            return
        last = self._plain
        is_news = last is None or (last.tables, last.is_applied) != (figures.tables, figures.is_applied)
        if last is not None and not is_news and figures.taken_at - last.taken_at < PLAIN_INTERVAL_S:
            return
        self._plain = figures
        self._area.screen.say(
            f"copy: {figures.finished}/{len(figures.tables)} tables, {figures.rows:,} rows, {figures.bytes / MIB:,.1f} MiB,"
            f" {figures.percent:.0f} %; {figures.applied_rows:,} rows in the target; {written:,} changes written meanwhile"
        )
        if is_news:
            for cells in _copied(figures):
                name, phase, rows, size, ranges, percent = cells
                self._area.screen.say(f"  {name:<12} {phase:<13} {rows:>8} rows {size:>6} MiB {ranges:>6} ranges {percent:>5}")


def _copied(figures: CopyFigures) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Table, phase, rows, MiB, ranges, percent."""
    for table in figures.tables:
        ranges = f"{table.ranges_done}/{table.ranges}"
        percent = f"{percent_copied([table]):.0f} %"
        yield table.table, table.phase.value, f"{table.rows:,}", f"{table.bytes / MIB:,.1f}", ranges, percent


def _copy_table(figures: CopyFigures, written: int) -> Table:
    table = Table(title="copying the existing rows", show_footer=True, min_width=72)
    table.add_column("table", "all")
    table.add_column("phase", f"{figures.finished}/{len(figures.tables)} finished")
    footers = (f"{figures.rows:,}", f"{figures.bytes / MIB:,.1f}", "", f"{figures.percent:.0f} %")
    for heading, footer in zip(("rows", "MiB", "ranges", "copied"), footers, strict=True):
        table.add_column(heading, footer, justify="right")
    for cells in _copied(figures):
        table.add_row(*cells)
    table.caption = f"{figures.applied_rows:,} rows in the target; {written:,} changes written meanwhile"
    return table


class LiveFigures:
    """Shows the figures given to ``show``, with the rates of the last seconds."""

    def __init__(self, area: LiveArea) -> None:
        self._area = area
        self._plain_at = 0.0
        self.rates = Rates()

    def show(self, figures: Figures, phase: str) -> None:
        self.rates.add(figures)
        if not self._area.is_plain:
            self._area.update(self._table(figures, phase))
        elif figures.taken_at - self._plain_at >= PLAIN_INTERVAL_S:
            self._plain_at = figures.taken_at
            self._area.screen.say(
                f"{phase}: written {figures.written:,} ({self.rates.written_per_s:,.0f}/s), applied {figures.applied:,}"
                f" ({self.rates.applied_per_s:,.0f}/s) in {figures.batches:,} batches,"
                f" lag {figures.lag_bytes / 1024:,.0f} KiB, {figures.lag_s:.2f} s"
            )

    def _table(self, figures: Figures, phase: str) -> Table:
        table = Table(title=phase, min_width=72)
        table.add_column("")
        table.add_column("changes", justify="right")
        table.add_column("per second", justify="right")
        table.add_column("behind the source", justify="right")
        table.add_row("written at the source", f"{figures.written:,}", f"{self.rates.written_per_s:,.0f}", "")
        table.add_row(
            f"in the stream ({figures.published_messages:,} messages, {figures.published_bytes / MIB:,.1f} MiB)",
            "",
            "",
            f"{figures.confirm_lag_bytes / 1024:,.0f} KiB",
        )
        table.add_row(
            f"applied to the target ({figures.batches:,} batches)",
            f"{figures.applied:,}",
            f"{self.rates.applied_per_s:,.0f}",
            f"{figures.lag_bytes / 1024:,.0f} KiB, {figures.lag_s:.2f} s",
        )
        return table
