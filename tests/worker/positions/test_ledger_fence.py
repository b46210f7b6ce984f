"""Copied rows are passed over only by who knows a ledger that is as new as they are."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table
from pgsluice.testing.changes_builder import table
from pgsluice.worker.batches.ownership import NEVER_COPIED, Ownership, OwnershipLedger
from pgsluice.worker.batches.planning import SequenceRange
from pgsluice.worker.batches.task import PartitionTask
from pgsluice.worker.dead_letters.exclusions import Exclusions
from pgsluice.worker.dead_letters.filter import DiscardingWriter
from pgsluice.worker.sinks.sink import Lane
from tests.servers import NatsServer
from tests.worker.task_receipts import receipts

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)
RUNNING = SnapshotRecord("first", "0/1", CopyState.RUNNING, CopyMode.COPY, "2026-01-31", "", 0, "1", "shop", "")
ORDERS = replace(table("orders", "id bigint"), oid=11)
RECORD = TableRecord(ORDERS.oid, ORDERS.schema, ORDERS.name, Phase.DATA_SYNC, "2026-01-31", "first", "0/10")


def test_rows_of_a_snapshot_that_the_ledger_does_not_name_yet_wait_and_those_of_an_old_one_are_passed_over(
    nats_server: NatsServer, group: str
) -> None:
    before, known, later, removed = asyncio.run(publish_rows(nats_server, GroupNames(group)))
    for too_old in (NEVER_COPIED, before):
        with pytest.raises(TransientError, match="does not contain the table"):
            written_rows(nats_server, group, too_old)
    assert written_rows(nats_server, group, known) == 1
    assert written_rows(nats_server, group, later) == 0
    assert written_rows(nats_server, group, removed) == 0


async def publish_rows(nats: NatsServer, names: GroupNames) -> tuple[Ownership, Ownership, Ownership, Ownership]:
    """Stores a row of a snapshot. What the ledger said before that, with it, later, and without the table."""
    async with connected(nats.settings(), "test") as client:
        bucket = StateBucket(client, names)
        await bucket.ensure(SETTINGS)
        await SnapshotStream(client, names).ensure(SETTINGS)
        ledger, ownership = Ledger(bucket), OwnershipLedger(bucket)
        await ledger.store_snapshot(RUNNING)
        await ledger.store_table(replace(RECORD, snapshot="", lsn=""))
        before = await ownership.current()
        revision = await ledger.store_table(RECORD)
        headers = SnapshotHeaders("first", ORDERS.oid, 1, 1, 1, 1, 1, 2, True, ledger_revision=revision).encode()
        subject = names.snapshot_range_subject("first", ORDERS.oid, 1)
        await client.jetstream().publish(subject, encode_table(ORDERS) + b"1\n", headers=headers)
        known = await ownership.current()
        await ledger.store_table(replace(RECORD, snapshot="second"))
        later = await ownership.current()
        await ledger.remove_table(ORDERS.oid)
        removed = await ownership.current()
    return before, known, later, removed


def written_rows(nats: NatsServer, group: str, ownership: Ownership) -> int:
    task = PartitionTask(nats.settings(), group, "w", DiscardingWriter(), ownership, Exclusions({}, {}, 1), Transformation())
    return sum(receipt.changes for receipt in receipts(task, [SequenceRange(Lane.COPIED, 1, 1, 1)]))
