"""A table copied by threads instead of Spark's tasks, through a stream of which room is made as in a replicator."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

from pgsluice.replicator.retention import RunningCopyRetention
from pgsluice.replicator.snapshot.copy_task import CopyProcess
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeOutcome, RangeRequest, RangeStatus
from pgsluice.replicator.snapshot.held_ranges import HeldRanges
from pgsluice.replicator.snapshot.schedule import Job, Schedule, ScheduleRun
from pgsluice.replicator.snapshot.stream_share import share_of_stream
from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.replicator.tasks import repeat, run_until_first
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger, Phase, TableRecord, now
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.process.retrying import Pauses
from tests.replicator.copier import Copier

PAYLOAD = 1 << 20
PURGE_INTERVAL_S = 0.02
SHORT = Pauses(0.01, 0.05)


class SmallCopy:
    """``run`` once. ``attempts`` counts what attempts came to."""

    def __init__(self, copier: Copier, max_bytes: int, tasks: int = 4) -> None:
        copier.max_bytes = max_bytes
        self.copier = copier
        self._tasks = tasks
        self._processes: list[CopyProcess] = []
        self._own = threading.local()
        self.attempts: Counter[RangeStatus] = Counter()
        self.snapshot_id = ""
        self.ranges = 0

    async def ensure(self) -> None:
        """Makes the bucket, for workers to report into."""
        async with connected(self.copier.nats, "test") as client:
            await StateBucket(client, self.copier.names).ensure(StreamSettings(1, (), 1 << 20, "none", 60.0))

    async def run(self, table: str, range_bytes: int) -> TableRecord:
        """The table's record when no range is left; a worker has to apply meanwhile."""
        copier = self.copier
        async with copier.snapshot(table, range_bytes) as (parameters, ranges), connected(copier.nats, "test") as client:
            stream, bucket = SnapshotStream(client, copier.names), StateBucket(client, copier.names)
            share = share_of_stream(stream.name, copier.max_bytes, self._tasks, PAYLOAD)
            parameters = replace(parameters, share=share, pauses=SHORT)
            self.snapshot_id, self.ranges = parameters.snapshot_id, len(ranges)
            progress = TableProgress(Ledger(bucket), [self._record(table)])
            held = HeldRanges(copier.names, self.snapshot_id, older=0)
            retention = RunningCopyRetention(stream, bucket, held)
            schedule = Schedule([ranges], self._tasks, range_bytes, share.ranges)
            async with self._threads(share.tasks, stream) as threads:
                run = ScheduleRun(schedule, self._job(parameters), share.tasks, threads, progress, SHORT, held)
                await run_until_first([run.run(), repeat(retention.purge, PURGE_INTERVAL_S, "not purged")])
            assert held.in_hand == []
            [record] = progress.records
            return record

    def _record(self, table: str) -> TableRecord:
        oid = self.copier.oid(table)
        return TableRecord(oid, "public", table, Phase.DATA_SYNC, now(), self.snapshot_id, "0/1", ranges=self.ranges)

    def _job(self, parameters: CopyParameters) -> Job:
        def copy(requests: Sequence[RangeRequest]) -> list[RangeOutcome]:
            if not hasattr(self._own, "process"):
                self._own.process = CopyProcess()
                self._processes.append(self._own.process)
            outcomes = [self._own.process.copy(parameters, request) for request in requests]
            self.attempts.update(outcome.status for outcome in outcomes)
            return outcomes

        return copy

    @asynccontextmanager
    async def _threads(self, tasks: int, stream: SnapshotStream) -> AsyncIterator[ThreadPoolExecutor]:
        threads = ThreadPoolExecutor(tasks)
        try:
            yield threads
        except BaseException:
            await stream.purge_up_to(1 << 40)  # or a thread would wait for room in it for ever
            raise
        finally:
            await asyncio.to_thread(threads.shutdown)
            for process in self._processes:
                await asyncio.to_thread(process.close)
