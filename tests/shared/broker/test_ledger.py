"""The ledger of a copy, as the state bucket holds it."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, LedgerContent, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer
from tests.waiting import wait_until_async

SETTINGS = StreamSettings(1, (), 1 << 20, "none", 60.0)
SNAPSHOT = SnapshotRecord("s", "0/1", CopyState.RUNNING, CopyMode.COPY, "2026-01-01", "", 0, "7", "shop", "earlier")
TABLE = TableRecord(17, "public", "t", Phase.DATA_SYNC, "2026-01-01", "s", "0/100", attempt=2, rows=3, error="", remedy="")


@pytest.fixture
async def bucket(group: str, nats_server: NatsServer) -> AsyncIterator[StateBucket]:
    async with connected(nats_server.settings(), "test") as client:
        made = StateBucket(client, GroupNames(group))
        await made.ensure(SETTINGS)
        yield made


async def test_records_are_loaded_as_they_were_stored(bucket: StateBucket) -> None:
    ledger = Ledger(bucket)
    assert await ledger.load() == LedgerContent(None, {})
    await ledger.store_snapshot(SNAPSHOT)
    await ledger.store_table(TABLE)
    await bucket.put("replicator", {"flushed_lsn": "0/1"})
    assert await ledger.load() == LedgerContent(SNAPSHOT, {17: TABLE})
    assert await ledger.load_snapshot() == SNAPSHOT
    await ledger.remove_table(17)
    assert (await ledger.load()).tables == {}


async def test_a_ledger_that_was_loaded_before_reads_only_what_was_written_since(bucket: StateBucket) -> None:
    writing, reading = Ledger(bucket), Ledger(bucket)
    await writing.store_snapshot(SNAPSHOT)
    for oid in range(1, 31):
        await writing.store_table(replace(TABLE, oid=oid))
    before = await reading.load()
    assert await reading.load() is before
    revision = await writing.store_table(replace(TABLE, oid=7, rows=4))
    await writing.remove_table(8)
    await writing.store_table(replace(TABLE, oid=31))
    asked = bucket.client.stats["out_msgs"]
    after = await reading.load()
    assert bucket.client.stats["out_msgs"] - asked <= 6
    assert after == await Ledger(bucket).load()
    assert (after.tables[7].rows, after.revisions[7], after.tables.keys() ^ before.tables.keys()) == (4, revision, {8, 31})


@pytest.mark.parametrize("snapshot", [None, SNAPSHOT], ids=["never copied", "copied"])
@pytest.mark.parametrize("others", [0, 20], ids=["fewer revisions", "more revisions"])
async def test_a_ledger_of_another_bucket_under_the_name_is_read_anew(
    bucket: StateBucket, snapshot: SnapshotRecord | None, others: int
) -> None:
    """Also where the snapshot stream, and so all that the record of the copy says, is the same."""
    ledger = Ledger(bucket)
    for oid in range(1, 9):
        await ledger.store_table(replace(TABLE, oid=oid))
    if snapshot is not None:
        await ledger.store_snapshot(snapshot)
    await ledger.load()
    await bucket.destroy()
    await bucket.ensure(SETTINGS)
    if snapshot is not None:
        await ledger.store_snapshot(snapshot)
    await ledger.store_table(TABLE)
    for _ in range(others):
        await bucket.put("another", {})
    assert await ledger.load() == LedgerContent(snapshot, {17: TABLE})


async def test_a_ledger_of_a_bucket_that_was_restored_from_an_older_copy_is_read_anew() -> None:
    with NatsServer() as server:
        async with connected(server.settings(), "test") as client:
            before = StateBucket(client, GroupNames("restored"))
            await before.ensure(SETTINGS)
            await Ledger(before).store_snapshot(SNAPSHOT)
            await Ledger(before).store_table(TABLE)
        server.stop()
        shutil.copytree(server.store, server.directory / "older")
        server.start()
        async with connected(server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames("restored"))
            ledger = Ledger(bucket)
            for rows in range(4, 20):
                await ledger.store_table(replace(TABLE, rows=rows))
            await ledger.store_table(replace(TABLE, oid=18))
            assert (await ledger.load()).tables.keys() == {17, 18}
            server.stop()
            shutil.rmtree(server.store)
            (server.directory / "older").rename(server.store)
            server.start()
            await wait_until_async(lambda: answers(bucket), what="the server that was restored")
            assert await ledger.load() == LedgerContent(SNAPSHOT, {17: TABLE})


async def answers(bucket: StateBucket) -> bool:
    with suppress(TransientError):
        return await bucket.exists()
    return False


async def test_what_a_ledger_is_as_new_as_does_not_depend_on_what_is_kept_of_removed_tables(bucket: StateBucket) -> None:
    """``nats kv compact`` removes what deletions leave."""
    ledger = Ledger(bucket)
    await ledger.store_snapshot(SNAPSHOT)
    revision = await ledger.store_table(TABLE)
    await ledger.remove_table(17)
    await bucket.purge("table.17")
    content = await Ledger(bucket).load()
    assert content.tables == {}
    assert content.revision >= revision


@pytest.mark.parametrize("key", ["table.17", "table.seventeen"])
async def test_a_record_of_another_form_is_an_error_that_names_it(bucket: StateBucket, key: str) -> None:
    await bucket.put(key, {"oid": 17, "phase": "asleep"})
    with pytest.raises(TerminalError, match=rf"record {re.escape(key)} of the state bucket .* is malformed"):
        await Ledger(bucket).load()
    await bucket.delete(key)
    assert await Ledger(bucket).load() == LedgerContent(None, {})


def test_of_a_table_whose_copy_is_finished_the_last_message_is_known_before_that_of_others() -> None:
    """A copy that an earlier version finished did not note it for each table."""
    earlier, over = replace(TABLE, last_sequence=0), replace(SNAPSHOT, state=CopyState.FINISHED, last_sequence=9)
    for snapshot, known in ((SNAPSHOT, None), (over, 9), (None, None)):
        ledger = LedgerContent(snapshot, {})
        assert (ledger.last_copied(replace(TABLE, last_sequence=5)), ledger.last_copied(earlier)) == (5, known)


def test_tables_wait_until_they_are_copied_or_given_up() -> None:
    tables = {oid: TableRecord(oid, "public", "t", phase, "then") for oid, phase in enumerate(Phase)}
    waiting = [table for table in tables.values() if table.phase.is_waiting_for_copy]
    assert [table.phase for table in waiting] == [Phase.INIT, Phase.DATA_SYNC]
