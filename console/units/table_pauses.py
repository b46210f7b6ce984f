"""``pgsluice pause --table`` and ``resume --table``: holds back the changes of single tables, which catch up later."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.console.units.orders import NOT_THERE_YET, who
from pgsluice.console.units.room import say_room
from pgsluice.shared.broker.bucket import StateBucket, opened_bucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.units.paused_tables import PAUSED_TABLES, PausedTable, PausedTables
from pgsluice.shared.units.unit_wait import UnitWait
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table, TablePattern

_STAYS = "the request stays stored, and the worker executes it when it is started again"


@dataclass(frozen=True, slots=True)
class TablePause:
    """``named`` are tables or patterns. ``is_wanted``: pause, or else resume."""

    named: tuple[str, ...]
    is_wanted: bool
    reason: str = ""
    wait_s: float | None = None


def run(settings: StatusSettings, pause: TablePause) -> int:
    """Writes to standard output and returns the exit code. Raises UsageError for what cannot be paused, TerminalError when
    a worker cannot obey any more, TransientError when NATS does not answer."""
    return asyncio.run(_order(settings, pause))


async def _order(settings: StatusSettings, pause: TablePause) -> int:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice pause {names.group}") as client:
        bucket = await opened_bucket(client, names)
        chosen = await write_pause(bucket, pause, who())
        if pause.wait_s is not None:
            await _follow(bucket, chosen, pause)
        missing = await _missing(bucket, frozenset(table.oid for table in chosen), pause)
        sys.stdout.writelines(f"{line}\n" for line in _outcome(chosen, missing, pause))
        if pause.is_wanted:
            sys.stdout.writelines(f"{line}\n" for line in await say_room(ChangeStream(client, names)))
    return NOT_THERE_YET if missing and pause.wait_s is not None else 0


async def write_pause(bucket: StateBucket, pause: TablePause, by: str) -> list[PausedTable]:
    """Writes the pause; returns its tables. Workers obey soon. Raises UsageError for a table that cannot be paused."""
    if pause.is_wanted:
        check_sinks(await read_reports(bucket))
        chosen = chosen_tables(pause, await load_tables(bucket) or [], by)
    else:
        chosen = chosen_paused(pause, await PAUSED_TABLES.load(bucket))
    await PAUSED_TABLES.change(bucket, lambda before: _changed(before, chosen, pause))
    return chosen


def check_sinks(reports: dict[str, WorkerReport]) -> None:
    """Raises UsageError when there is a worker that could only hold back all tables."""
    single = sorted(worker for worker, report in reports.items() if not report.two_lanes)
    if single:
        raise UsageError(
            f"the sink of worker {single[0]!r} keeps one place in the stream for all tables, so none can wait alone",
            f"pause the worker: 'pgsluice pause --worker {single[0]}'; or give the sink 'keeps_catch_up'. A worker of an earlier "
            "version has to be started with this one first",
        )


def chosen_tables(pause: TablePause, published: Sequence[Table], by: str) -> list[PausedTable]:
    """Raises UsageError for a name that is no published table's."""
    at = datetime.now(UTC).isoformat()
    tables: dict[int, PausedTable] = {}
    for text in pause.named:
        pattern = _pattern(text)
        found = [table for table in published if pattern.matches(table.schema, table.name)]
        if not found:
            raise UsageError(f"the group publishes no table {text!r}", "'pgsluice tables list' shows those that it does")
        tables |= {table.oid: PausedTable(table.oid, table.schema, table.name, pause.reason, by, at) for table in found}
    return list(tables.values())


def chosen_paused(pause: TablePause, paused: PausedTables) -> list[PausedTable]:
    """Returns the paused tables to resume; ignores others."""
    patterns = [_pattern(text) for text in pause.named]
    return [table for table in paused.tables if any(pattern.matches(table.schema, table.table) for pattern in patterns)]


def _pattern(text: str) -> TablePattern:
    try:
        return TablePattern.parse(text)
    except ValueError as error:
        raise UsageError(f"--table: {text!r} {error}", "name a table") from None


def _changed(before: PausedTables, chosen: Sequence[PausedTable], pause: TablePause) -> PausedTables:
    oids = {table.oid for table in chosen}
    if pause.is_wanted:
        return PausedTables(before.tables + tuple(table for table in chosen if table.oid not in before.oids))
    return PausedTables(tuple(table for table in before.tables if table.oid not in oids))


async def _follow(bucket: StateBucket, chosen: Sequence[PausedTable], pause: TablePause) -> None:
    """Returns when all workers have obeyed, or when the wait is over. Raises TerminalError when they cannot any more."""
    oids = frozenset(table.oid for table in chosen)

    async def look() -> Sequence[str] | None:
        held = oids & (await PAUSED_TABLES.load(bucket)).oids
        if held != (oids if pause.is_wanted else frozenset()):
            now, again = ("resumed", "pause") if pause.is_wanted else ("paused", "resume")
            raise TerminalError(
                f"another client has {now} a table during the wait", f"'pgsluice {again} --table' sends the request again"
            )
        return [worker_unit(worker) for worker in await _missing(bucket, oids, pause)] or None

    await UnitWait(bucket, undone="and has not obeyed", stays=_STAYS, wait_s=pause.wait_s).until(look)


async def _missing(bucket: StateBucket, oids: frozenset[int], pause: TablePause) -> list[str]:
    """Returns the workers that have not obeyed."""
    reports = await read_reports(bucket)
    return sorted(worker for worker, report in reports.items() if not has_obeyed(report, oids, pause))


def has_obeyed(report: WorkerReport, oids: frozenset[int], pause: TablePause) -> bool:
    """Returns whether the worker holds these tables back, or has caught up with all of them."""
    if pause.is_wanted:
        return oids <= set(report.paused_tables)
    return oids.isdisjoint(report.paused_tables) and oids.isdisjoint(report.catching_up)


def _outcome(chosen: Sequence[PausedTable], missing: Sequence[str], pause: TablePause) -> Iterator[str]:
    if not chosen:
        yield "no such table is paused"
    for table in chosen:
        yield f"table {table.qualified_name}: {'paused' if pause.is_wanted else 'resumed'}"
    what = "holds them back" if pause.is_wanted else "has caught up with them"
    for worker in missing:
        yield f"worker {worker}: not known yet that it {what}"
