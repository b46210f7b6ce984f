"""Copies ranges in a thread of this process, one after the other: it has copied little data before Spark would have started."""

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
"""A thread copies that much in less than a second, and hardly slows the stream of this process."""

_PATIENCE_MS = 500  # Spark copies a table whose size another session's lock hides

# Counts the partitions of a table, too, and the large values that PostgreSQL stores outside its pages.
_SIZES: LiteralString = """
    WITH RECURSIVE tree (oid) AS (
        SELECT t.oid FROM unnest(%s::oid[]) AS t (oid)
         UNION
        SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
         WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = t.oid AND c.relkind = 'p'))
    SELECT count(*), coalesce(sum(pg_table_size(t.oid)), 0)::bigint FROM tree t
"""


async def is_little(source: Source, oids: Collection[int]) -> bool:
    """Returns whether a thread of this process copies these tables in a moment. The caller is the only user of the connection."""
    doing = "looking at the sizes of tables"
    try:
        async with source.transaction(doing):
            await source.execute(doing, sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_PATIENCE_MS)))
            [(relations, size)] = await source.rows(doing, _SIZES, [list(oids)])
            return bool(relations <= LITTLE_RELATIONS and size <= LITTLE_BYTES)
    except LockTimeoutError:
        return False


class CopyHere:
    """``CopyTasks`` (``copy_round``) that run in one thread. ``copying_here`` makes it."""

    most = 1

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(self.most, "pgsluice-copy")
        self._process: CopyProcess | None = None

    def job(self, parameters: CopyParameters) -> Job:
        """Returns what copies ranges of that snapshot. The caller ends it by ``cancel``."""
        self._process = CopyProcess()
        return partial(_copy, self._process, parameters)

    def cancel(self) -> None:
        """Ends a copy that runs, between two messages. Does not wait for that."""
        process, self._process = self._process, None
        if process is not None:
            process.interrupt()
            self.threads.submit(process.close)


@asynccontextmanager
async def copying_here() -> AsyncIterator[CopyHere]:
    """Closes its connections at the end."""
    here = CopyHere()
    try:
        yield here
    finally:
        here.cancel()
        await asyncio.to_thread(here.threads.shutdown)


def _copy(process: CopyProcess, parameters: CopyParameters, requests: Sequence[RangeRequest]) -> list[RangeOutcome]:
    return [process.copy(parameters, request) for request in requests]
