"""What a Spark task of a copy runs.

A Python process that runs tasks keeps one connection to the source, in a transaction under the snapshot, and one to NATS, for as
long as it lives: a copy has no more connections than it has tasks at a time.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Iterator
from typing import LiteralString

import psycopg
import uvloop
from nats.aio.client import Client

from replicator.connection import Connection, connect, sql_error
from replicator.snapshot.export import begin, import_snapshot
from replicator.snapshot.orders import CopyOrder, RangeFailedError, RangeOrder, RangeOutcome, Verdict
from replicator.snapshot.range_copy import publish_rows
from replicator.snapshot.range_publisher import RangePublisher
from shared import nats_connection
from shared.defect import place_of
from shared.errors import PgsluiceError, SnapshotGoneError, TransientError
from shared.jetstream import SnapshotStream
from shared.names import GroupNames

# One plan for every attempt, the pages in their order: with a row filter another plan would give another order. And all rows or
# an error, where the role would see only some of them.
_PINNED: LiteralString = """
    SELECT set_config(name, value, false)
      FROM (VALUES ('enable_seqscan', 'off'), ('enable_indexscan', 'off'), ('enable_indexonlyscan', 'off'),
                   ('enable_bitmapscan', 'off'), ('enable_tidscan', 'on'), ('max_parallel_workers_per_gather', '0'),
                   ('synchronize_seqscans', 'off'), ('jit', 'off'), ('row_security', 'off')) AS pinned (name, value)
"""


def copy_ranges(order: CopyOrder, ranges: Iterable[RangeOrder]) -> Iterator[RangeOutcome]:
    """Copies one range after the other; each has its outcome. Blocks."""
    process = _copy_process()
    for range_order in ranges:
        yield process.copy(order, range_order)


class CopyProcess:
    """The connections of this process, made when they are needed, and again after they broke."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._client: Client | None = None
        self._connection: Connection | None = None
        self._snapshot_name = ""

    def copy(self, order: CopyOrder, range_order: RangeOrder) -> RangeOutcome:
        return self._runner.run(self._copy(order, range_order))

    def close(self) -> None:
        """Closes the connections; they are made again when the next range is copied."""
        self._runner.run(self._close())

    async def _copy(self, order: CopyOrder, range_order: RangeOrder) -> RangeOutcome:
        try:
            return await self._store(order, range_order)
        except RangeFailedError as failure:
            verdict, error = failure.verdict, failure.error
        except SnapshotGoneError as gone:
            verdict, error = Verdict.SNAPSHOT_GONE, gone
        except PgsluiceError as raised:
            verdict = Verdict.UNAVAILABLE if isinstance(raised, TransientError) else Verdict.REFUSED
            error = raised
        except Exception as defect:  # noqa: BLE001  Spark prints what a task raises, and this one may quote a row
            verdict = Verdict.FAILED
            error = TransientError(f"copying {range_order.pages.name} failed ({place_of(defect)})", "it is tried again")
        await self._disconnect_source()
        return RangeOutcome(range_order.pages, verdict, error=error)

    async def _store(self, order: CopyOrder, range_order: RangeOrder) -> RangeOutcome:
        """The outcome of a range that is stored; it is read unless the stream holds all of it."""
        names, pages = GroupNames(order.group), range_order.pages
        client = await self._connected_client(order)
        subject = names.snapshot_range_subject(order.snapshot_id, pages.table_oid, pages.number)
        id_prefix = f"{order.system_id}/{order.snapshot_id}/{pages.table_oid}/{pages.number}/"
        publisher = RangePublisher(client, SnapshotStream(client, names), subject, id_prefix)
        try:
            stored = await publisher.resume()
            if stored.headers is not None and stored.headers.is_range_end:
                rows, size = stored.headers.range_rows, stored.headers.range_bytes
                return RangeOutcome(pages, Verdict.DONE, rows, size, stored.sequence)
            return await publish_rows(await self._connected_source(order), publisher, order, range_order)
        finally:
            await publisher.close()

    async def _connected_client(self, order: CopyOrder) -> Client:
        if self._client is None or self._client.is_closed:
            self._client = await nats_connection.connect(order.nats, f"pgsluice copy {order.group}")
        return self._client

    async def _connected_source(self, order: CopyOrder) -> Connection:
        if self._snapshot_name != order.snapshot_name:
            await self._disconnect_source()
        if self._connection is None:
            self._connection = await connect(order.source, raw=True)
            self._snapshot_name = order.snapshot_name
            try:
                await begin(self._connection)
                await import_snapshot(self._connection, order.snapshot_name)
                await self._connection.execute(_PINNED)
            except psycopg.Error as error:
                raise sql_error(error, "preparing a connection that copies") from None
        return self._connection

    async def _disconnect_source(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _close(self) -> None:
        await self._disconnect_source()
        client, self._client = self._client, None
        if client is not None:
            await nats_connection.disconnect(client)


@functools.cache
def _copy_process() -> CopyProcess:
    """This process's connections."""
    return CopyProcess()
