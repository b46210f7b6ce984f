"""Ranges that are copied in a thread of this process, one after the other: little is copied before Spark has started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.snapshot.copy_task import CopyProcess
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeOutcome, RangeRequest
from pgsluice.replicator.snapshot.schedule import Job
from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import LockTimeoutError

LITTLE_BYTES = 8 * 1024 * 1024
LITTLE_RELATIONS = 100
"""So much is copied here in less than a second, and the stream that goes on in this process hardly notices it."""

_PATIENCE_MS = 500  # somebody's lock on a table is no reason to wait for its size

# With the partitions of a table, and what is stored beside its pages.
_SIZES: LiteralString = """
    WITH RECURSIVE tree (oid) AS (
        SELECT t.oid FROM unnest(%s::oid[]) AS t (oid)
         UNION
        SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
         WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = t.oid AND c.relkind = 'p'))
    SELECT count(*), coalesce(sum(pg_table_size(t.oid)), 0)::bigint FROM tree t
"""


async def is_little(source: Source, oids: Collection[int]) -> bool:
    """Returns whether these tables are soon copied here. The caller is the only user of the connection."""
    doing = "looking at the sizes of tables"
    try:
        async with source.transaction(doing):
            await source.execute(doing, sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_PATIENCE_MS)))
            [(relations, size)] = await source.rows(doing, _SIZES, [list(oids)])
            return bool(relations <= LITTLE_RELATIONS and size <= LITTLE_BYTES)
    except LockTimeoutError:
        return False


class CopyHere:
    """``CopyTasks`` (``copy_round``). To be made by ``copying_here``."""

    most = 1

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(self.most, "pgsluice-copy")
        self._process: CopyProcess | None = None

    def job(self, parameters: CopyParameters) -> Job:
        """To be ended by ``cancel``."""
        self._process = CopyProcess()
        return partial(_copy, self._process, parameters)

    def cancel(self) -> None:
        """What is being copied ends between two messages. Does not wait for that."""
        process, self._process = self._process, None
        if process is not None:
            process.interrupt()
            self.threads.submit(process.close)


@asynccontextmanager
async def copying_here() -> AsyncIterator[CopyHere]:
    """Its connections are closed at the end."""
    here = CopyHere()
    try:
        yield here
    finally:
        here.cancel()
        await asyncio.to_thread(here.threads.shutdown)


def _copy(process: CopyProcess, parameters: CopyParameters, requests: Sequence[RangeRequest]) -> list[RangeOutcome]:
    return [process.copy(parameters, request) for request in requests]
