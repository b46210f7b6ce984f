"""Copying without Spark: the tables of a source planned under a snapshot, and their ranges copied by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pgsluice.replicator.snapshot.copy_task import CopyProcess
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeOutcome, RangeRequest
from pgsluice.replicator.snapshot.export import SnapshotKeeper
from pgsluice.replicator.snapshot.plan import PageRange, plan_ranges
from pgsluice.replicator.snapshot.stream_share import MOST_RANGES, StreamShare
from pgsluice.replicator.source.catalog import CopiedTable, read_tables
from pgsluice.shared.broker.connection import connect
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.process.retrying import DEFAULT_POLICY
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table
from tests.servers import Database

PAGE_BYTES = 8192
UNBOUNDED = 1 << 62


@dataclass
class Copier:
    """One group's copies of one source. ``cut_bytes`` and ``chunk_bytes`` are small, so that few rows make many messages."""

    group: str
    source: Database
    nats: NatsSettings
    cut_bytes: int = 4096
    chunk_bytes: int = 512 * 1024
    max_bytes: int = 1 << 30

    @property
    def names(self) -> GroupNames:
        return GroupNames(self.group)

    def oid(self, table: str) -> int:
        return int(self.source.execute("SELECT %s::regclass::oid::bigint", [table])[0][0])

    def read(self, *tables: str) -> list[CopiedTable]:
        """What the catalog says of the tables now."""

        async def read() -> list[CopiedTable]:
            keeper = await SnapshotKeeper.export(self.source.settings)
            try:
                oids = [self.oid(table) for table in tables]
                return await read_tables(keeper.source, self.names, oids, self.source.server.version)
            finally:
                await keeper.close()

        return asyncio.run(read())

    @asynccontextmanager
    async def snapshot(
        self, table: str, range_bytes: int = PAGE_BYTES
    ) -> AsyncIterator[tuple[CopyParameters, list[RangeRequest]]]:
        """The requests of a copy of one table, while its snapshot is kept; the begin message is published."""
        keeper = await SnapshotKeeper.export_at_slot(self.source.settings, 60.0)
        client = await connect(self.nats, "test")
        try:
            await SnapshotStream(client, self.names).ensure(StreamSettings(1, (), self.max_bytes, "none", 86_400.0))
            [copied] = await read_tables(keeper.source, self.names, [self.oid(table)], self.source.server.version)
            parameters = CopyParameters(
                group=self.group,
                source=self.source.settings,
                nats=self.nats,
                system_id="7",
                snapshot_name=keeper.snapshot.name,
                snapshot_id=keeper.snapshot.id,
                share=StreamShare(1, MOST_RANGES, self.cut_bytes, self.chunk_bytes, UNBOUNDED, UNBOUNDED),
                pauses=DEFAULT_POLICY.copied_rows,
            )
            head = encode_table(copied.table)
            begin = SnapshotHeaders(keeper.snapshot.id, copied.table.oid, 1, None, 1, 0, 0, 0, False)
            subject = self.names.snapshot_begin_subject(keeper.snapshot.id, copied.table.oid)
            await client.jetstream().publish(subject, head, headers=begin.encode())
            yield parameters, [RangeRequest(pages, 1, head) for pages in plan_ranges(copied, range_bytes, PAGE_BYTES)]
        finally:
            await client.close()
            await keeper.close()


async def copy_all(process: CopyProcess, parameters: CopyParameters, ranges: list[RangeRequest]) -> list[RangeOutcome]:
    """The ranges' outcomes, one after the other; the process has a loop of its own, so it runs in a thread."""
    return await asyncio.to_thread(lambda: [process.copy(parameters, request) for request in ranges])


def page_range(oid: int = 1, number: int = 1, size_bytes: int = PAGE_BYTES, name: str = "public.t") -> PageRange:
    """A range that is never read."""
    return PageRange(oid, number, name, oid, 1, size_bytes, lock="", query="")
