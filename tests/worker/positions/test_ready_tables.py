"""Since when a worker says that tables are ready."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgsluice.shared.broker.ledger import CopyMode, CopyState, LedgerContent, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.wire.position import LSN
from pgsluice.worker.positions import ready_tables
from pgsluice.worker.positions.ready_tables import ReadyTables
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, CatchUp

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
FINISHED = SnapshotRecord("s", "0/80", CopyState.FINISHED, CopyMode.COPY_AND_STREAM, "", "", 9, "7", "shop", "then")
RUNNING = replace(FINISHED, state=CopyState.RUNNING, last_sequence=0)
ORDERS = TableRecord(1, "public", "orders", Phase.FINISHED_COPY, START.isoformat(), "s", "0/80", last_sequence=5)
ITEMS = replace(ORDERS, oid=2, table="items", last_sequence=9)
NEW = TableRecord(2, "public", "items", Phase.INIT, START.isoformat())
COPIED = Applied(0, 0, 0, "", snapshot_sequence=9)
READY = Applied(3, 0x80, 0, "then", snapshot_sequence=9)
"""Of all tables that are copied up to message 9."""


class Clock:
    def __init__(self) -> None:
        self.now = START

    def pass_minute(self) -> str:
        self.now += timedelta(minutes=1)
        return self.now.isoformat()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ready_tables, "now", lambda: clock.now)
    return clock


def ledger(snapshot: SnapshotRecord, *tables: TableRecord) -> LedgerContent:
    return LedgerContent(snapshot, {table.oid: table for table in tables})


def moments(tables: ReadyTables) -> dict[tuple[int, int], str]:
    return tables.record.by_copy()


def first_copy(tables: Iterable[TableRecord] = (ORDERS, ITEMS)) -> ReadyTables:
    """Of a worker that has seen the begin of it."""
    ready = ReadyTables(NOTHING_APPLIED)
    ready.know(ledger(FINISHED, *tables))
    return ready


def test_tables_of_a_first_copy_are_ready_when_changes_have_passed_it(clock: Clock) -> None:
    tables = first_copy()
    clock.pass_minute()
    assert not tables.move(COPIED)
    at = clock.pass_minute()
    assert tables.move(READY)
    assert moments(tables) == {(1, 5): at, (2, 9): at}
    assert not tables.waits
    clock.pass_minute()
    assert not tables.move(replace(READY, sequence=4))


def test_where_the_source_rests_tables_are_ready_since_their_copy_was_applied(clock: Clock) -> None:
    tables = first_copy()
    at = clock.pass_minute()
    tables.move(COPIED)
    clock.pass_minute()
    found = ledger(FINISHED, ORDERS, ITEMS)
    assert not tables.know(found, LSN(0x7F), StreamState("then", 1, 0, 0, 0, 1))
    assert tables.know(found, LSN(0x80), StreamState("then", 1, 0, 0, 0, 1))
    assert set(moments(tables).values()) == {at}


def test_tables_that_no_changes_follow_are_ready_one_by_one_as_their_copies_turn_out_to_be_applied(clock: Clock) -> None:
    running = replace(RUNNING, mode=CopyMode.COPY)
    tables = ReadyTables(NOTHING_APPLIED)
    tables.know(ledger(running, replace(ORDERS, phase=Phase.DATA_SYNC, last_sequence=0), NEW))
    first = clock.pass_minute()
    tables.move(replace(COPIED, snapshot_sequence=5))
    clock.pass_minute()
    tables.know(ledger(running, ORDERS, NEW))
    assert moments(tables) == {(1, 5): first}
    last = clock.pass_minute()
    tables.know(ledger(replace(running, state=CopyState.FINISHED), ORDERS, ITEMS))
    tables.move(COPIED)
    assert moments(tables) == {(1, 5): first, (2, 9): last}


def test_a_table_that_joins_is_ready_when_it_is_where_the_others_are(clock: Clock) -> None:
    tables = first_copy([ORDERS])
    first = clock.pass_minute()
    tables.move(replace(READY, snapshot_sequence=5))
    tables.know(ledger(RUNNING, ORDERS, NEW))
    behind = replace(READY, sequence=7, catch_up=CatchUp(3, 0x80, 0, frozenset([2])))
    clock.pass_minute()
    tables.move(replace(behind, snapshot_sequence=5))
    tables.know(ledger(FINISHED, ORDERS, ITEMS))
    tables.move(behind)
    assert moments(tables) == {(1, 5): first}
    joined = clock.pass_minute()
    tables.move(replace(READY, sequence=7))
    assert moments(tables) == {(1, 5): first, (2, 9): joined}


def test_a_table_that_was_paused_or_returned_is_ready_since_it_joined_the_others_again(clock: Clock) -> None:
    tables = first_copy()
    first = clock.pass_minute()
    tables.move(READY)
    assert tables.move(replace(READY, sequence=7, catch_up=CatchUp(3, 0x80, 0, frozenset([2]))))
    assert moments(tables) == {(1, 5): first}
    resumed = clock.pass_minute()
    tables.move(replace(READY, sequence=7))
    assert moments(tables) == {(1, 5): first, (2, 9): resumed}
    tables.know(ledger(FINISHED, ORDERS, replace(ITEMS, phase=Phase.LEFT)))
    tables.know(ledger(RUNNING, ORDERS, NEW))
    tables.know(ledger(FINISHED, ORDERS, replace(ITEMS, last_sequence=12, lsn="0/90")))
    assert moments(tables) == {(1, 5): first}
    returned = clock.pass_minute()
    tables.move(Applied(8, 0x90, 0, "then", snapshot_sequence=12))
    assert moments(tables) == {(1, 5): first, (2, 12): returned}


def test_the_next_process_goes_on_with_what_was_told_and_says_nothing_of_what_nobody_saw(clock: Clock) -> None:
    before = first_copy([ORDERS])
    first = clock.pass_minute()
    before.move(READY)
    clock.pass_minute()
    for applied in (READY, replace(READY, commit_lsn=0x40)):
        tables = ReadyTables(applied)
        tables.take_up(before.record)
        tables.know(ledger(FINISHED, ORDERS, ITEMS))
        clock.pass_minute()
        tables.move(replace(READY, sequence=9, commit_lsn=0x99))
        tables.know(ledger(FINISHED, ORDERS, ITEMS))
        assert moments(tables) == {(1, 5): first}


def test_a_process_that_begins_within_the_first_copy_sees_the_tables_become_ready(clock: Clock) -> None:
    tables = ReadyTables(replace(COPIED, snapshot_sequence=5))
    tables.know(ledger(RUNNING, ORDERS, NEW))
    tables.know(ledger(FINISHED, ORDERS, ITEMS))
    tables.move(COPIED)
    at = clock.pass_minute()
    tables.move(READY)
    assert moments(tables) == {(1, 5): at, (2, 9): at}


def test_of_a_copy_that_an_earlier_version_finished_nothing_is_said(clock: Clock) -> None:
    tables = first_copy([replace(ORDERS, last_sequence=0)])
    tables.move(READY)
    assert moments(tables) == {}
    assert not tables.waits


def test_a_worker_whose_clock_is_behind_is_not_ready_before_the_copy_was(clock: Clock) -> None:
    later = (START + timedelta(hours=1)).isoformat()
    tables = first_copy([replace(ORDERS, since=later)])
    clock.pass_minute()
    tables.move(READY)
    assert moments(tables) == {(1, 5): later}


def test_where_a_sink_was_set_back_in_a_pause_its_tables_become_ready_anew(clock: Clock) -> None:
    tables = first_copy()
    tables.move(READY)
    tables.go_on(NOTHING_APPLIED)
    tables.know(ledger(FINISHED, ORDERS, ITEMS))
    assert moments(tables) == {}
    at = clock.pass_minute()
    tables.move(READY)
    assert moments(tables) == {(1, 5): at, (2, 9): at}
