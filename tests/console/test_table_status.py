"""What the status says of copied tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.console.table_status import format_tables, table_statuses
from pgsluice.console.tables import listed_tables
from pgsluice.shared.broker.ledger import CopyMode, CopyState, LedgerContent, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.broker.table_selection import TableSelection
from pgsluice.shared.broker.worker_records import WorkerReport
from pgsluice.shared.units.applied_places import AppliedPlaces
from pgsluice.shared.wire.position import LSN, parse_lsn

SNAPSHOT = SnapshotRecord("s", "0/80", CopyState.FINISHED, CopyMode.COPY_AND_STREAM, "then", "later", 40, "7", "shop", "earlier")
COPIED = TableRecord(
    oid=1,
    schema="public",
    table="orders",
    phase=Phase.FINISHED_COPY,
    since="2026-01-01T00:00:10+00:00",
    snapshot="s",
    lsn="0/80",
    began_at="2026-01-01T00:00:00+00:00",
    rows=1_000_000,
    bytes=110_000_000,
    ranges_done=4,
    ranges=4,
)
STREAM = StreamState("created", 1, 9, 9, 900, 1000)


PUBLISHED = parse_lsn("0/90")


def ledger(snapshot: SnapshotRecord, *tables: TableRecord) -> LedgerContent:
    return LedgerContent(snapshot, {table.oid: table for table in tables})


def worker(snapshot_sequence: int, commit_lsn: str, sequence: int = 0) -> WorkerReport:
    return WorkerReport(sequence, snapshot_sequence, commit_lsn)


@pytest.mark.parametrize(
    ("workers", "phase"),
    [
        ([], Phase.FINISHED_COPY),
        ([worker(39, "0/0")], Phase.FINISHED_COPY),
        ([worker(40, "0/78")], Phase.CATCHUP),
        ([worker(40, "0/80")], Phase.READY),
        ([worker(40, "0/0", sequence=9)], Phase.READY),
        ([worker(40, "0/80"), worker(40, "0/0", sequence=8)], Phase.CATCHUP),
    ],
)
def test_a_copied_table_goes_on_with_the_slowest_worker(workers: list[WorkerReport], phase: Phase) -> None:
    [status] = table_statuses(ledger(SNAPSHOT, COPIED), AppliedPlaces(workers, PUBLISHED, STREAM))
    assert status.phase is phase


@pytest.mark.parametrize(
    ("state", "last_sequence", "phase"),
    [
        (CopyState.FINISHED, 40, Phase.CATCHUP),
        (CopyState.RUNNING, 40, Phase.SYNC_WAIT),
        (CopyState.RUNNING, 41, Phase.FINISHED_COPY),
    ],
)
def test_a_table_that_is_behind_the_others_is_not_ready_wherever_they_are(
    state: CopyState, last_sequence: int, phase: Phase
) -> None:
    behind = replace(worker(40, "0/80"), catching_up=(COPIED.oid,), catch_up_sequence=1, catch_up_lsn="0/10")
    found = ledger(replace(SNAPSHOT, state=state), replace(COPIED, last_sequence=last_sequence))
    [status] = table_statuses(found, AppliedPlaces([behind], PUBLISHED, STREAM))
    assert status.phase is phase


def test_while_another_table_is_copied_one_that_was_before_is_ready() -> None:
    found = ledger(replace(SNAPSHOT, state=CopyState.RUNNING, last_sequence=0), replace(COPIED, last_sequence=40))
    [status] = table_statuses(found, AppliedPlaces([worker(40, "0/80")], PUBLISHED, STREAM))
    assert status.phase is Phase.READY


def test_before_the_whole_copy_is_finished_a_table_is_only_copied() -> None:
    running = replace(SNAPSHOT, state=CopyState.RUNNING)
    [status] = table_statuses(ledger(running, COPIED), AppliedPlaces([worker(40, "0/80")], PUBLISHED, STREAM))
    assert status.phase is Phase.FINISHED_COPY


def test_a_table_that_no_changes_follow_is_ready_when_its_copy_is_applied() -> None:
    found = ledger(replace(SNAPSHOT, mode=CopyMode.COPY), COPIED)
    for snapshot_sequence, phase in ((39, Phase.FINISHED_COPY), (40, Phase.READY)):
        [status] = table_statuses(found, AppliedPlaces([worker(snapshot_sequence, "")], LSN(0), None))
        assert status.phase is phase


def test_a_table_is_ready_since_the_last_worker_has_it_ready() -> None:
    copied = replace(COPIED, last_sequence=40)
    workers = [worker(40, "0/80"), worker(40, "0/90")]
    first, last, other = "2026-01-01T00:01:00+00:00", "2026-01-01T00:01:00.5+00:00", "2026-01-01T00:02:00+00:00"
    here, there = {(1, 40): first}, {(1, 40): last, (2, 40): other}
    for moments, since in (
        ([here, there], last),
        ([there, here], last),
        ([here, {(2, 40): other}], ""),
        ([here, {(1, 39): other}], ""),
        ([here, {}], ""),
        ([], ""),
    ):
        places = AppliedPlaces(workers, PUBLISHED, STREAM, moments)
        [status] = table_statuses(ledger(SNAPSHOT, copied), places)
        assert (status.phase, status.since, status.copied_at) == (Phase.READY, since, COPIED.since)
        [listed] = listed_tables(ledger(SNAPSHOT, copied), None, TableSelection(), places)
        assert listed.since == since
    assert f"  {last[:19]}" in list(format_tables([replace(status, since=last)]))[1]
    assert list(format_tables([status]))[1].endswith(" -")


def test_a_table_that_is_no_longer_ready_shows_no_time_of_its_copy() -> None:
    moments = [{(1, 40): "2026-01-01T00:01:00+00:00"}]
    behind = replace(worker(40, "0/80"), catching_up=(COPIED.oid,), catch_up_sequence=1, catch_up_lsn="0/10")
    found = ledger(SNAPSHOT, replace(COPIED, last_sequence=40))
    [status] = table_statuses(found, AppliedPlaces([behind], PUBLISHED, STREAM, moments))
    assert (status.phase, status.since, status.copied_at) == (Phase.CATCHUP, "", COPIED.since)


def test_a_list_of_tables_says_what_the_status_says() -> None:
    found, applied = ledger(SNAPSHOT, COPIED), AppliedPlaces([worker(40, "0/80")], PUBLISHED, STREAM)
    [status] = table_statuses(found, applied)
    [listed] = listed_tables(found, None, TableSelection(), applied)
    assert (listed.table, listed.phase) == (status.table, status.phase.value) == ("public.orders", "ready")


def test_a_group_that_never_copied_has_no_tables_to_show() -> None:
    assert table_statuses(LedgerContent(None, {}), AppliedPlaces([], PUBLISHED, None)) == []


def test_the_table_of_tables_has_figures_and_says_what_is_wrong() -> None:
    errored = replace(
        COPIED, oid=2, table="Bad", phase=Phase.ERRORED, rows=10, ranges_done=1, error="it failed", remedy="mend it"
    )
    new = TableRecord(3, "sales", "new", Phase.INIT, "2026-01-01T00:00:00+00:00")
    lines = list(format_tables(table_statuses(ledger(SNAPSHOT, COPIED, errored, new), AppliedPlaces([], PUBLISHED, STREAM))))
    assert lines == [
        "table          phase          rows       MB     ranges  rows/s   since",
        "public.Bad     errored               10  110.0     1/4        1  2026-01-01T00:00:10",
        "    it failed: mend it",
        "public.orders  finished_copy  1,000,000  110.0     4/4  100,000  2026-01-01T00:00:10",
        "sales.new      init                   0    0.0     0/0        -  2026-01-01T00:00:00",
    ]
