"""A group of which nothing runs: what its processes would have written of themselves into the broker, for whoever reads that."""

from __future__ import annotations

from datetime import UTC, datetime

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY, GroupRecord, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, ProcessRecord, process_key, worker_unit
from pgsluice.shared.broker.worker_records import LeaseRecord, WorkerReport, lease_key, worker_key
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.process.pulse import Activity
from pgsluice.shared.wire.names import GroupNames

STREAM = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)
WORKERS = ("postgres", "archive")
TABLES = 5


async def record(client: Client, group: str) -> None:
    """A group that runs, with WORKERS and TABLES that were copied."""
    names = GroupNames(group)
    bucket, stream = StateBucket(client, names), ChangeStream(client, names)
    await bucket.ensure(STREAM)
    created = (await stream.ensure(STREAM)).created
    now = datetime.now(UTC).isoformat()
    await bucket.put(GROUP_KEY, GroupRecord(group, "1", 1, "shop", names.publication, 1, names.slot, "0/1", now))
    await bucket.put(REPLICATOR_KEY, ReplicatorRecord("0/2", created, 0, started_at=now, updated_at=now))
    await bucket.put(process_key(REPLICATOR_UNIT), _process(now))
    ledger = Ledger(bucket)
    await ledger.store_snapshot(
        SnapshotRecord("s", "0/1", CopyState.FINISHED, CopyMode.COPY_AND_STREAM, now, now, 0, "1", "shop", created)
    )
    for number in range(1, TABLES + 1):
        table = TableRecord(number, "public", f"table_{number}", Phase.FINISHED_COPY, now, "s", "0/1", rows=1000, began_at=now)
        await ledger.store_table(table)
    for worker in WORKERS:
        await bucket.put(worker_key(worker), WorkerReport(0, stream_created=created, started_at=now, updated_at=now))
        await bucket.put(lease_key(worker), LeaseRecord("host", 1))
        await bucket.put(process_key(worker_unit(worker)), _process(now))


def _process(now: str) -> ProcessRecord:
    return ProcessRecord("host", 1, now, now, Activity.WORKING, now)
