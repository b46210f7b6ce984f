"""What is left to copy after an interruption, and which group may not go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.replicator.snapshot.copy_state import CopyOrigin, CopyWishes, begin_attempt, check_copy_origin, resume_copy
from pgsluice.replicator.source.tables import SourceTable
from pgsluice.shared.broker.ledger import CopyMode, CopyState, LedgerContent, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.errors import TerminalError, UsageError

ORIGIN = CopyOrigin("7", "shop", "2026-01-01T00:00:00Z")
RUNNING = SnapshotRecord("s", "0/1", CopyState.RUNNING, CopyMode.COPY, "2026-01-01", "", 0, "7", "shop", "2026-01-01T00:00:00Z")


def source_table(oid: int) -> SourceTable:
    return SourceTable(oid, "public", f"t{oid}", "r", "p", 0, [], [])


def record(oid: int, phase: Phase, snapshot: str = "s", attempt: int = 1) -> TableRecord:
    return TableRecord(
        oid, "public", f"t{oid}", phase, "2026-01-01", snapshot, "0/1" if snapshot else "", attempt, error="e", remedy="r"
    )


def content(*records: TableRecord) -> LedgerContent:
    return LedgerContent(RUNNING, {table.oid: table for table in records})


def test_finished_tables_stay_finished_and_new_ones_are_added() -> None:
    known = content(record(1, Phase.FINISHED_COPY), record(2, Phase.DATA_SYNC))
    resumption = resume_copy(known, [source_table(oid) for oid in (1, 2, 3)], CopyWishes())
    assert [table.phase for table in resumption.records] == [Phase.FINISHED_COPY, Phase.DATA_SYNC, Phase.INIT]
    assert [table.oid for table in resumption.changed] == [3]


@pytest.mark.parametrize(("retry_errored", "phase", "error"), [(False, Phase.ERRORED, "e"), (True, Phase.INIT, "")])
def test_an_errored_table_is_taken_up_only_when_asked_for(retry_errored: bool, phase: Phase, error: str) -> None:
    [table] = resume_copy(content(record(1, Phase.ERRORED)), [source_table(1)], CopyWishes(retry_errored)).records
    assert (table.phase, table.error) == (phase, error)


def test_a_table_that_is_no_longer_selected_is_not_waited_for_and_keeps_a_finished_copy() -> None:
    known = content(
        record(1, Phase.INIT, ""), record(2, Phase.DATA_SYNC), record(3, Phase.FINISHED_COPY), record(4, Phase.ERRORED)
    )
    left = resume_copy(known, [], CopyWishes()).left
    assert {table.phase for table in left} == {Phase.LEFT}
    assert [(table.oid, table.lsn, table.attempt) for table in left] == [(1, "", 1), (2, "", 2), (3, "0/1", 1), (4, "", 2)]


def test_a_table_that_left_stays_so_without_being_written_again() -> None:
    left = resume_copy(content(record(1, Phase.FINISHED_COPY)), [], CopyWishes()).left
    assert resume_copy(content(*left), [], CopyWishes()).left == []


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.DATA_SYNC, Phase.FINISHED_COPY, Phase.ERRORED])
def test_a_table_that_returns_is_a_new_attempt_when_a_snapshot_had_begun_it(phase: Phase) -> None:
    left = resume_copy(content(record(1, phase)), [], CopyWishes()).left
    [table] = resume_copy(content(*left), [source_table(1)], CopyWishes()).records
    assert (table.phase, table.attempt, table.snapshot, table.lsn, table.error) == (Phase.INIT, 2, "", "", "")


def test_a_new_table_under_the_name_of_one_that_was_copied_empties_it_and_owns_its_changes() -> None:
    resumption = resume_copy(content(record(1, Phase.FINISHED_COPY)), [replace(source_table(2), name="t1")], CopyWishes())
    assert [(table.oid, table.phase, table.attempt) for table in resumption.records] == [(2, Phase.INIT, 2)]
    assert [(table.oid, table.phase, table.lsn) for table in resumption.left] == [(1, Phase.LEFT, "")]


def test_a_table_that_was_streamed_before_it_is_copied_is_emptied_first() -> None:
    wishes = CopyWishes(known_names=frozenset({"public.t1"}))
    assert resume_copy(content(), [source_table(1)], wishes).records[0].attempt == 2


def test_a_finished_table_is_copied_anew_when_asked_for_or_when_it_was_not_followed() -> None:
    known = content(*(record(oid, Phase.FINISHED_COPY) for oid in (1, 2, 3)))
    wishes = CopyWishes(recopied=frozenset({1}), followed=frozenset({1, 2}))
    records = resume_copy(known, [source_table(oid) for oid in (1, 2, 3)], wishes).records
    assert [(table.phase, table.attempt) for table in records] == [
        (Phase.INIT, 2),
        (Phase.FINISHED_COPY, 1),
        (Phase.INIT, 2),
    ]


def test_an_attempt_counts_when_a_snapshot_had_begun_the_table() -> None:
    assert begin_attempt(record(1, Phase.INIT, snapshot="")).attempt == 1
    again = begin_attempt(record(1, Phase.DATA_SYNC, attempt=2))
    assert (again.attempt, again.snapshot, again.lsn, again.rows, again.ranges) == (3, "", "", 0, 0)
    assert begin_attempt(again).attempt == 3


def test_a_copy_goes_on_from_where_it_came() -> None:
    check_copy_origin(RUNNING, ORIGIN, CopyMode.COPY)
    check_copy_origin(None, ORIGIN, CopyMode.COPY)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"system_id": "8"}, "this group copied database 'shop' of system 7"),
        ({"database": "other"}, "the source is database 'other'"),
        ({"stream_created": "later"}, "the snapshot stream was deleted and created again"),
    ],
)
def test_another_source_or_stream_is_refused(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(TerminalError, match=sentence):
        check_copy_origin(RUNNING, replace(ORIGIN, **changed), CopyMode.COPY)


def test_another_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="this group was started with mode copy, not with mode copy-and-stream"):
        check_copy_origin(RUNNING, ORIGIN, CopyMode.COPY_AND_STREAM)
