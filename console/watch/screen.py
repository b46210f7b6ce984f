"""One status of a group, drawn for a terminal of any size.

Most important first: the problems, then the positions, then the tables, as many as there is room for. Nothing is drawn
beyond the width: a line that is too long ends in "…", and omitted rows are counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from pgsluice.console.columns import format_bytes
from pgsluice.console.status import GroupStatus
from pgsluice.console.table_status import TableStatus
from pgsluice.console.watch.look import Look
from pgsluice.console.watch.rates import Rates, rates_between
from pgsluice.console.watch.trouble import troubles
from pgsluice.console.watch.units import UnitLine, unit_lines
from pgsluice.shared.broker.ledger import Phase

_LABEL_WIDTH = 11
_BAR_WIDTH = 10
_MOST_TROUBLE = 6
"""Lines, on a screen that has little room."""
_NEARLY_FULL = 0.8
_OLD_S = 10.0
_HIGH = 14
"""Lines, below which only the heading, what is wrong and the units are shown."""
_COLUMNS = (("messages", 72), ("bytes", 72), ("s behind", 0), ("changes/s", 50), ("dead", 72))
"""Columns of the units, each with the width from which it is shown."""

_UNDER_WAY = (Phase.ERRORED, Phase.DATA_SYNC, Phase.INIT, Phase.FINISHED_COPY, Phase.SYNC_WAIT, Phase.CATCHUP)
_FIRST = (*_UNDER_WAY, Phase.READY, Phase.LEFT)
"""Phases of tables that are shown first when there is not room for all."""
_STYLES = {Phase.ERRORED: "bold red", Phase.DATA_SYNC: "cyan", Phase.READY: "green", Phase.LEFT: "dim"}


def status_screen(earlier: Look | None, newest: Look | None, problem: str = "") -> RenderableType:
    """Draws ``newest``, with rates since ``earlier``. ``problem`` is why there is no newer status, "" otherwise. The
    picture is never higher than rich's ``max_height``."""
    return _Screen(earlier, newest, problem)


@dataclass(frozen=True, slots=True)
class _Screen:
    earlier: Look | None
    newest: Look | None
    problem: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.newest is None:
            yield Text(self.problem or "looking …", style="bold red" if self.problem else "dim")
            return
        status, rates = self.newest.status, rates_between(self.earlier, self.newest)
        head = [*_head(status, rates, time.monotonic() - self.newest.at_s), Text()]
        if options.max_height < _HIGH:
            del head[1:]
        wrong = [Text(line, "bold red", no_wrap=True, overflow="ellipsis") for line in self._wrong(status)]
        units = unit_lines(status, rates)
        room = options.max_height - len(head) - len(units) - 1
        shown = _at_most(wrong, max(1, min(room, _MOST_TROUBLE)))
        yield Group(*head, *shown, _units(units, options.max_width))
        if status.tables:
            yield Group(Text(), _tables_line(status.tables), *_tables(status.tables, room - len(shown) - 2))

    def _wrong(self, status: GroupStatus) -> list[str]:
        return [*([self.problem] if self.problem else []), *troubles(status)]


def _head(status: GroupStatus, rates: Rates, age_s: float) -> list[RenderableType]:
    now, style = datetime.now(UTC).strftime("%H:%M:%S UTC"), "dim"
    if age_s > _OLD_S:
        now, style = f"as of {age_s:.0f} s ago", "yellow"
    first = Table.grid(expand=True)
    first.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    first.add_column(justify="right", no_wrap=True)
    first.add_row(Text(f"pgsluice  group {status.group}", "bold"), Text(now, style))
    bound = status.bound_to
    source = "not bound to a source yet" if bound is None else f"database {bound.database}, system {bound.system_id}"
    return [
        first,
        _line("source", Text(source)),
        _line("slot", Text(_slot(status))),
        _line("stream", _stream(status)),
        _line("published", Text(_published(rates))),
    ]


def _slot(status: GroupStatus) -> str:
    slot = status.slot
    if slot is None:
        return f"not known: {status.source_problem}" if status.source_problem else "there is none"
    lag = "" if slot.lag_bytes is None else f"{format_bytes(slot.lag_bytes)} not confirmed, "
    use = "in use" if slot.active_pid is not None else "not in use"
    return f"{lag}wal_status {slot.wal_status}, {use}"


def _stream(status: GroupStatus) -> Text:
    state = status.stream
    if state is None:
        return Text("there is none")
    share = state.bytes / state.max_bytes if state.max_bytes > 0 else 0.0
    style = "bold red" if share > _NEARLY_FULL else ""
    limit = f" of {format_bytes(state.max_bytes)}, {share:.0%} full" if state.max_bytes > 0 else ""
    return Text.assemble((f"{format_bytes(state.bytes)}{limit}", style), f", {state.messages:,} messages")


def _published(rates: Rates) -> str:
    if rates.published_changes is None or rates.published_bytes is None:
        return "-"
    return f"{rates.published_changes:,.0f} changes/s, {format_bytes(round(rates.published_bytes))}/s"


def _line(label: str, content: Text) -> Text:
    line = Text.assemble((label.ljust(_LABEL_WIDTH), "dim"), content)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _units(lines: Sequence[UnitLine], width: int) -> Table:
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("unit", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("state", no_wrap=True)
    shown = [index for index, (_, least) in enumerate(_COLUMNS) if width >= least]
    for index in shown:
        table.add_column(_COLUMNS[index][0], justify="right", no_wrap=True)
    for line in lines:
        cells = (line.messages, line.bytes, line.seconds, line.rate, line.dead)
        table.add_row(Text(line.name), Text(line.state, line.style), *(Text(cells[index]) for index in shown))
    return table


def _tables_line(tables: Sequence[TableStatus]) -> Text:
    counts = Counter(table.phase for table in tables)
    parts = [(f"{counts[phase]} {phase.value}", _STYLES.get(phase, "")) for phase in _FIRST if counts[phase]]
    line = Text.assemble(("tables".ljust(_LABEL_WIDTH), "dim"))
    line.append_text(Text(" · ").join(Text(text, style) for text, style in parts))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _tables(tables: Sequence[TableStatus], room: int) -> list[RenderableType]:
    ordered = sorted(tables, key=lambda table: (_FIRST.index(table.phase), table.table))
    most = len(ordered) if room >= len(ordered) else max(0, room - 1)
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_column(width=_BAR_WIDTH)
    for _ in ("rows", "rows/s"):
        grid.add_column(justify="right", no_wrap=True, overflow="ellipsis")
    for table in ordered[:most]:
        grid.add_row(
            Text(table.table),
            Text(table.phase.value, _STYLES.get(table.phase, "")),
            _progress(table),
            f"{table.rows:,} rows",
            _rows_per_s(table),
        )
    shown: list[RenderableType] = [grid] if most else []
    left = len(ordered) - most
    if left and room > 0:
        shown.append(Text(f"… and {left} more tables", "dim"))
    return shown


def _rows_per_s(table: TableStatus) -> str:
    return "" if table.phase is not Phase.DATA_SYNC or table.rows_per_s is None else f"{table.rows_per_s:,.0f}/s"


def _progress(table: TableStatus) -> RenderableType:
    if table.phase is not Phase.DATA_SYNC or not table.ranges:
        return Text()
    return Bar(table.ranges, 0, table.ranges_done, width=_BAR_WIDTH, color="cyan")


def _at_most(lines: list[Text], most: int) -> list[Text]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], Text(f"… and {len(lines) - most + 1} more; see 'pgsluice status'", "bold red", no_wrap=True)]
