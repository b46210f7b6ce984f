"""Which changes the copy holds already, and which copied rows count."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, LedgerContent, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.rows.changes import MessageChanges, TableChanges, Truncation
from pgsluice.shared.wire.definition import TableGone
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, format_lsn
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import TransactionPart, delete, insert, message_of, table, transaction, truncate, update
from pgsluice.worker.batches.ownership import EVERYTHING, NEVER_COPIED, Copy, Ownership, OwnershipLedger
from pgsluice.worker.sinks.sink import Lane
from tests.servers import NatsServer

COPY_LSN = 5000
ORDERS = replace(table("orders", "id bigint"), oid=11)
LINES = replace(table("lines", "id bigint"), oid=12)
NOTES = replace(table("notes", "id bigint"), oid=13)


def record(of: Table, phase: Phase = Phase.FINISHED_COPY, *, lsn: int = COPY_LSN, snapshot: str = "first") -> TableRecord:
    return TableRecord(of.oid, of.schema, of.name, phase, "2026-01-31", snapshot, format_lsn(LSN(lsn)) if lsn else "")


def ownership(*records: TableRecord) -> Ownership:
    return Ownership.of(LedgerContent(None, {each.oid: each for each in records}))


def left(message: MessageChanges) -> list[tuple[str, int]]:
    """Table and change index of every change, in commit order; one for each table of a truncation."""
    found: list[tuple[str, int]] = []
    for part in message.parts:
        match part:
            case TableChanges():
                found += [(part.table.name, index) for index in part.change_indexes]
            case Truncation():
                found += [(each.name, part.change_index) for each in part.tables]
    return sorted(found, key=lambda change: change[1])


def after_copy(owner: Ownership, *transactions: TransactionPart) -> list[tuple[str, int]]:
    return left(owner.remainder(message_of(1, *transactions)))


@pytest.mark.parametrize(("commit_lsn", "is_streamed"), [(COPY_LSN - 1, False), (COPY_LSN, True), (COPY_LSN + 1, True)])
def test_the_copy_holds_what_committed_before_its_lsn_and_not_what_commits_there(commit_lsn: int, is_streamed: bool) -> None:
    rows = (insert(ORDERS, b"1"), update(ORDERS, b"1"), delete(ORDERS, b"1"))
    assert len(after_copy(ownership(record(ORDERS)), transaction(commit_lsn, *rows))) == (3 if is_streamed else 0)


def test_transactions_of_one_message_are_judged_apart() -> None:
    before, after = (transaction(lsn, insert(ORDERS, b"1"), insert(LINES, b"1")) for lsn in (4000, 6000))
    assert after_copy(ownership(record(ORDERS), record(LINES)), before, after) == [("orders", 2), ("lines", 3)]


def test_each_table_has_its_own_lsn_and_one_that_was_never_copied_has_none() -> None:
    owner = ownership(record(ORDERS, lsn=3000), record(LINES, lsn=7000))
    rows = (insert(ORDERS, b"1"), insert(LINES, b"1"), insert(NOTES, b"1"))
    assert after_copy(owner, transaction(5000, *rows)) == [("orders", 0), ("notes", 2)]
    assert after_copy(owner, transaction(2000, *rows)) == [("notes", 2)]


def test_positions_transactions_and_the_number_of_changes_stay() -> None:
    message = message_of(4, transaction(4000, insert(ORDERS, b"1")), transaction(6000, insert(ORDERS, b"2")))
    remainder = ownership(record(ORDERS)).remainder(message)
    assert (remainder.sequence, remainder.change_count, remainder.transactions) == (4, 2, message.transactions)
    (part,) = remainder.parts
    assert isinstance(part, TableChanges)
    assert part.new == [[b"2"]]


def test_a_message_behind_every_copy_is_passed_on_as_it_is() -> None:
    message = message_of(1, transaction(COPY_LSN, insert(ORDERS, b"1")))
    assert ownership(record(ORDERS)).remainder(message) is message
    assert NEVER_COPIED.remainder(message) is message


def test_a_truncation_is_left_for_the_tables_that_were_copied_before_it() -> None:
    owner = ownership(record(ORDERS, lsn=3000), record(LINES, lsn=7000))
    assert after_copy(owner, transaction(5000, truncate(ORDERS, LINES, NOTES))) == [("orders", 0), ("notes", 0)]
    assert after_copy(owner, transaction(2000, truncate(ORDERS, LINES))) == []


def test_a_transaction_in_several_messages_is_left_out_of_all_of_them() -> None:
    owner = ownership(record(ORDERS), record(LINES, lsn=9000))
    begins = message_of(1, transaction(4000, insert(ORDERS, b"1"), commits=False))
    goes_on = message_of(2, transaction(4000, insert(ORDERS, b"2"), insert(NOTES, b"1"), first_ordinal=2))
    assert left(owner.remainder(begins)) == []
    assert left(owner.remainder(goes_on)) == [("notes", 1)]


@pytest.mark.parametrize("lsn", [0, COPY_LSN])
def test_an_errored_table_gets_neither_rows_nor_changes(lsn: int) -> None:
    owner = ownership(record(ORDERS, Phase.ERRORED, lsn=lsn), record(LINES))
    assert not owner.counts(ORDERS, "first")
    assert after_copy(owner, transaction(1 << 60, insert(ORDERS, b"1"), insert(LINES, b"1"))) == [("lines", 1)]


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.DATA_SYNC])
def test_a_table_that_waits_for_its_snapshot_gets_nothing(phase: Phase) -> None:
    owner = ownership(record(ORDERS, phase, lsn=0, snapshot=""))
    assert not owner.counts(ORDERS, "first")
    assert after_copy(owner, transaction(1 << 60, insert(ORDERS, b"1"))) == []


def test_only_rows_of_the_tables_newest_snapshot_count() -> None:
    owner = ownership(record(ORDERS, Phase.DATA_SYNC, snapshot="second"), record(LINES))
    assert owner.counts(ORDERS, "second")
    assert owner.counts(LINES, "first")
    assert not owner.counts(ORDERS, "first")
    assert not owner.counts(NOTES, "first")


def test_it_is_as_new_as_the_record_of_a_table_and_without_one_as_the_ledger() -> None:
    """A record may have been read from a replica that lags, although the rest of the ledger is newer."""
    owner = Ownership({ORDERS.oid: Copy("first", COPY_LSN, revision=3)}, revision=9)
    assert [owner.knows(ORDERS, revision) for revision in (3, 4, 9)] == [True, False, False]
    assert [owner.knows(NOTES, revision) for revision in (3, 9, 10)] == [True, True, False]


def test_what_an_earlier_life_of_the_stream_applied_is_left_out_whether_its_table_was_copied_or_not() -> None:
    owner = replace(ownership(record(ORDERS)), applied_before=COPY_LSN + 10)
    before, first_new = (transaction(lsn, insert(ORDERS, b"1"), truncate(NOTES)) for lsn in (COPY_LSN + 9, COPY_LSN + 10))
    assert after_copy(owner, before, first_new) == [("orders", 2), ("notes", 3)]


def test_that_a_table_is_gone_is_held_by_no_copy_whatever_that_has_come_to() -> None:
    """The target may have rows of it, and nothing else says that they are to go."""
    gone = PublishedDefinition(TableGone("DROP SCHEMA", ORDERS.oid, "public", "orders"), None)
    message = message_of(1, transaction(COPY_LSN - 1, gone))
    for of_table in (record(ORDERS, Phase.LEFT, lsn=0, snapshot=""), record(ORDERS), record(ORDERS, Phase.ERRORED)):
        owner = ownership(of_table)
        assert owner.remainder(message).parts == message.parts
        assert replace(owner, applied_before=COPY_LSN).remainder(message).parts == []
        assert replace(owner, cohort=frozenset({ORDERS.oid})).remainder(message).parts == []
        catching_up = replace(owner, cohort=frozenset({ORDERS.oid}), lane=Lane.CATCH_UP)
        assert catching_up.remainder(message).parts == message.parts
        assert replace(catching_up, borders={ORDERS.oid: COPY_LSN}).remainder(message).parts == []


def test_it_can_be_sent_to_tasks() -> None:
    owner = ownership(record(ORDERS))
    assert pickle.loads(pickle.dumps(owner)) == owner


changes = st.sampled_from(
    [insert(ORDERS, b"1"), insert(LINES, b"1"), insert(NOTES, b"1"), truncate(ORDERS, LINES), truncate(NOTES, ORDERS)]
)
transactions = st.lists(st.tuples(st.integers(1, 10), st.lists(changes, max_size=4)), max_size=5)


@given(transactions, st.integers(1, 11), st.integers(1, 11))
def test_of_any_message_exactly_the_changes_from_the_lsn_on_are_left(
    drawn: list[tuple[int, list[object]]], orders_lsn: int, lines_lsn: int
) -> None:
    owner = ownership(record(ORDERS, lsn=orders_lsn), record(LINES, lsn=lines_lsn))
    message = message_of(1, *(transaction(lsn, *rows) for lsn, rows in drawn))  # type: ignore[arg-type]
    borders = {"orders": orders_lsn, "lines": lines_lsn, "notes": 0}
    lsns = [lsn for lsn, rows in drawn for _ in rows]
    expected = [(name, index) for name, index in left(message) if lsns[index] >= borders[name]]
    assert left(owner.remainder(message)) == expected


@pytest.mark.asyncio
async def test_the_ledger_is_read_again_while_a_copy_runs_and_when_another_was_begun(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.ensure(StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60))
        ledger, view = Ledger(bucket), OwnershipLedger(bucket)
        running = SnapshotRecord("first", "0/1", CopyState.RUNNING, CopyMode.COPY, "2026-01-31", "", 0, "1", "shop", "")
        assert await view.current() == NEVER_COPIED
        await ledger.store_table(record(ORDERS, Phase.INIT, lsn=0, snapshot=""))
        await ledger.store_snapshot(running)
        assert (await view.current()).copies == {ORDERS.oid: Copy("", EVERYTHING)}
        await ledger.store_table(record(ORDERS, Phase.DATA_SYNC))
        assert (await view.current()).copies == {ORDERS.oid: Copy("first", EVERYTHING)}
        await ledger.store_table(record(ORDERS))
        await ledger.store_snapshot(replace(running, state=CopyState.FINISHED))
        assert (await view.current()).copies == {ORDERS.oid: Copy("first", COPY_LSN)}
        await ledger.store_table(record(ORDERS, Phase.INIT, lsn=0, snapshot=""))
        await ledger.store_snapshot(running)
        assert (await view.current()).copies == {ORDERS.oid: Copy("", EVERYTHING)}
