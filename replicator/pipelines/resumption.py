"""The rest of a run that was not finished.

The newest message of each range holds the key up to which it was read. Rows after that are read under a new snapshot,
as new ranges. Before, the old range is ended in the stream: a task of the earlier run that is still at work, on another
machine, can store nothing after that.
"""

from __future__ import annotations

from dataclasses import replace

import orjson
from nats.aio.client import Client

from pgsluice.replicator.snapshot.range_publisher import RangePublisher, Stored
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.pipelines.run_records import Key, RangeRecord, RunRecord
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table
from pgsluice.shared.wire.table import Table


class RunResumption:
    """The resumption of one pipeline, whose runs no other process may begin meanwhile."""

    def __init__(self, client: Client, names: GroupNames, system_id: str, table: Table) -> None:
        self._client = client
        self._names = names
        self._system_id = system_id
        self._table = table
        self.rows = 0
        """Rows stored of the ranges that were asked about."""

    async def ranges_left(self, snapshot: str, run: RunRecord) -> list[RangeRecord]:
        """Returns the rest of each range that the run left, under the number of that range and without a count of rows. The old
        ranges are ended in the stream when this returns."""
        left = []
        for each in run.ranges:
            reached = await self._end(snapshot, each.number, RunMark(run.number, run.version)) or each.after
            if reached != each.last:
                left.append(replace(each, after=reached, rows=None))
        return left

    async def _end(self, snapshot: str, number: int, mark: RunMark) -> Key:
        """Returns the last key of what is stored of the range, () for none; nothing is stored after that any more."""
        while True:
            publisher = self._publisher(snapshot, number)
            try:
                stored = await publisher.resume()
                key = _key(stored.headers)
                if stored.headers is not None and stored.headers.is_range_end:
                    self.rows += stored.headers.range_rows
                    return key
                await publisher.publish(self._end_headers(snapshot, number, stored, mark), encode_table(self._table))
                await publisher.flush()  # if a task of the earlier run was faster, its message is the newest now
            finally:
                await publisher.close()

    def _publisher(self, snapshot: str, number: int) -> RangePublisher:
        """Returns a publisher whose ids differ from those of the range's rows, or JetStream would mistake a task's next
        message for this one."""
        subject = self._names.snapshot_range_subject(snapshot, self._table.oid, number)
        id_prefix = f"{self._system_id}/{snapshot}/{self._table.oid}/{number}/end/"
        return RangePublisher(self._client, SnapshotStream(self._client, self._names), subject, id_prefix)

    def _end_headers(self, snapshot: str, number: int, stored: Stored, mark: RunMark) -> SnapshotHeaders:
        before = stored.headers
        return SnapshotHeaders(
            snapshot=snapshot,
            oid=self._table.oid,
            attempt=1,
            range_number=number,
            number=stored.number + 1,
            rows=0,
            range_rows=0 if before is None else before.range_rows,
            range_bytes=0 if before is None else before.range_bytes,
            is_range_end=True,
            last_key="" if before is None else before.last_key,
            mark=mark if before is None else before.mark,
        )


def _key(headers: SnapshotHeaders | None) -> Key:
    return () if headers is None or not headers.last_key else tuple(orjson.loads(headers.last_key))
