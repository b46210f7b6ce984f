"""The phases of a group's tables, as its replicator recorded them, and as they follow from its workers' progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.broker.worker_records import ReadyRecord, WorkerReport, read_reports, ready_key, worker_of
from pgsluice.shared.wire.position import LSN, parse_lsn

NOTHING_PUBLISHED = LSN(0)


@dataclass(frozen=True, slots=True)
class AppliedPlaces:
    """The progress of a group's workers. All that commits below ``published`` is in ``stream``. ``moments`` holds for
    each worker since when tables are ready there, as ``ReadyRecord.by_copy``."""

    workers: Collection[WorkerReport]
    published: LSN
    stream: StreamState | None
    moments: Collection[Mapping[tuple[int, int], str]] = ()

    @classmethod
    async def read(cls, bucket: StateBucket) -> AppliedPlaces:
        """Raises TransientError when NATS does not answer."""
        reports, moments = await read_reports(bucket), await read_moments(bucket)
        return cls(reports.values(), *await read_published(bucket), moments)

    def phase_since(self, table: TableRecord, snapshot: SnapshotRecord | None) -> tuple[Phase, str]:
        """Returns ``phase``, and since when the table is in it: "" where that is not known. A table is ready since the
        last of the workers has it ready."""
        phase = self.phase(table, snapshot)
        if phase is table.phase:
            return phase, table.since
        return phase, self._ready_since(table) if phase is Phase.READY else ""

    def _ready_since(self, table: TableRecord) -> str:
        moments = [of_worker.get((table.oid, table.last_sequence), "") for of_worker in self.moments]
        is_known = len(moments) == len(self.workers) and all(moments)
        return max(moments, key=datetime.fromisoformat) if is_known else ""

    def phase(self, table: TableRecord, snapshot: SnapshotRecord | None) -> Phase:
        """Returns the recorded phase; after a finished copy, the phase that follows from the slowest worker."""
        if snapshot is None or table.phase is not Phase.FINISHED_COPY or not self.workers:
            return table.phase
        is_running = snapshot.state is CopyState.RUNNING
        last_copied = table.last_sequence or snapshot.last_sequence
        is_left_out = is_running and not table.last_sequence
        if is_left_out or any(worker.snapshot_sequence < last_copied for worker in self.workers):
            return Phase.FINISHED_COPY
        lsn = parse_lsn(table.lsn)
        is_ready = snapshot.mode is CopyMode.COPY or all(
            table.oid not in worker.catching_up and _has_passed(worker, lsn, self.published, self.stream)
            for worker in self.workers
        )
        if is_ready:
            return Phase.READY
        return Phase.SYNC_WAIT if is_running else Phase.CATCHUP


async def read_published(bucket: StateBucket) -> tuple[LSN, StreamState | None]:
    """Returns the LSN below which all is in the stream of changes, and how far that is. Raises TransientError."""
    replicator = await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
    published = NOTHING_PUBLISHED if replicator is None else parse_lsn(replicator.value.flushed_lsn)
    return published, await ChangeStream(bucket.client, bucket.names).state()


async def read_moments(bucket: StateBucket) -> list[Mapping[tuple[int, int], str]]:
    """Reads the record of each registered worker."""
    workers = [name for key in await bucket.keys() if (name := worker_of(key)) is not None]
    entries = [await bucket.read(ready_key(name), ReadyRecord) for name in workers]
    return [{} if entry is None else entry.value.by_copy() for entry in entries]


def _has_passed(worker: WorkerReport, lsn: LSN, published: LSN, stream: StreamState | None) -> bool:
    """Returns whether the worker has applied every change that commits below ``lsn``, those of other tables included."""
    if parse_lsn(worker.commit_lsn) >= lsn:
        return True
    return stream is not None and published >= lsn and worker.sequence >= stream.last_sequence
