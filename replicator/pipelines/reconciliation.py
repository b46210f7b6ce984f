"""Finds rows at the target that the query no longer returns.

The target is read before the source: what is at the target came from the source, so a row that came to the source since
is not reported. Only buckets of keys that differ are read (``key_digests``), and keys that seem to be gone are queried
once more by themselves, under a snapshot that is newer than all that was read of the target.

Call it when all that the pipeline read is applied, and while no other process may run it: then no row is on its way to
the target.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql

from pgsluice.replicator.pipelines.key_digests import Keys, KeysOf, bucket_count
from pgsluice.replicator.pipelines.key_ranges import QuerySql
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.query_reader import QueryReader
from pgsluice.replicator.source.connection import Connection, server_said
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.config.connections import PostgresSettings
from pgsluice.shared.errors import Cause, TerminalError, TransientError, UsageError
from pgsluice.shared.pipelines.run_records import PipelineRecord, RangeRecord, RunRecord, RunState, load_pipeline
from pgsluice.shared.wire.table import Column

MOST_DELETES_SHARE = 0.1
"""Share of the target's rows: more deletes are probably a mistake."""
FEW_DELETES = 10
"""Number of deletes that are allowed whatever share they are."""

_TEXTS = ("text", "character varying")
_TYPES = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
 WHERE a.attrelid = to_regclass({}) AND a.attnum > 0 AND NOT a.attisdropped
"""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciling:
    """``target`` holds the pipeline's rows, None if not configured. ``now``: regardless of the last time. ``force``:
    however many rows must be deleted."""

    target: PostgresSettings | None = None
    now: bool = False
    force: bool = False


NO_RECONCILING = Reconciling()


@dataclass(frozen=True, slots=True)
class TargetKeys:
    """Facts about the target's keys: the number of rows, and the digests of buckets."""

    rows: int
    buckets: int
    digests: dict[int, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Gone:
    """``keys`` of rows at the target that the query does not give. ``rows_read`` is how many keys were read to know it, on both
    sides; ``rows`` how many the target has."""

    keys: Keys
    rows_read: int
    rows: int

    def check(self, pipeline: str, *, force: bool) -> None:
        """Raises TerminalError when they are too many to be believed."""
        if not force and len(self.keys) > max(FEW_DELETES, MOST_DELETES_SHARE * self.rows):
            raise TerminalError(
                f"pipeline '{pipeline}' would delete {len(self.keys)} of {self.rows} rows at the target,"
                f" and {MOST_DELETES_SHARE:.0%} is the most",
                "see whether the query, the target and the worker's rules are meant for each other; --force deletes them",
            )


class TargetTableKeys:
    """``connection`` is to the target's database, and in no transaction."""

    def __init__(self, connection: Connection, query: QuerySql) -> None:
        self._connection = connection
        self._place = sql.Identifier(query.pipeline.schema, query.pipeline.table)
        self._columns = key_columns(query)
        self._keys = KeysOf(self._place, query.pipeline.key)

    async def read(self) -> TargetKeys:
        """Raises UsageError when there is no such table, or its key is of other types."""
        await self._check()
        [(rows,)] = await self._rows(self._keys.count())
        buckets = bucket_count(rows)
        return TargetKeys(rows, buckets, _by_bucket(await self._rows(self._keys.digests(buckets))))

    async def keys_in(self, buckets: int, chosen: Sequence[int]) -> AsyncGenerator[tuple[str, ...]]:
        """Yields the keys, sorted."""
        try:
            async with self._connection.cursor() as cursor:
                async for key in cursor.stream(self._keys.keys_in(buckets, chosen).encode(), size=1000):
                    yield key
        except psycopg.Error as error:
            raise _comparing_failed(error) from None

    async def _check(self) -> None:
        """Checks that the same text means the same key."""
        name = self._place.as_string(None)
        found = dict(await self._rows(sql.SQL(_TYPES).format(sql.Literal(name)).as_string(None)))
        if not found:
            raise UsageError(f"the target has no table {name} whose rows could be compared", "run the pipeline's worker first")
        for column in self._columns:
            there = found.get(column.name, "")
            if there != column.type_name and not there.startswith(_TEXTS):
                raise UsageError(
                    f"column '{column.name}' of {name} is {there or 'not there'} at the target and {column.type_name} in the"
                    " query, so their keys cannot be compared",
                    "cast it in the query, or alter the target",
                )

    async def _rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return await (await self._connection.execute(query.encode())).fetchall()
        except psycopg.Error as error:
            raise _comparing_failed(error) from None


def _comparing_failed(error: psycopg.Error) -> TransientError:
    said = server_said(error.sqlstate or "", error.diag.message_primary or str(error))
    return TransientError(f"comparing keys at the target failed{said}", "run the pipeline again", Cause.TARGET)


def check_comparable(pipeline: Pipeline, asked: Reconciling) -> None:
    """Raises UsageError when keys at the target are not those of the query."""
    if pipeline.steps and (asked.now or pipeline.reconcile_every_s):
        raise UsageError(
            f"pipeline '{pipeline.name}' has steps, which may change keys, so target and query cannot be compared",
            "leave out deletes: reconcile, or the steps",
        )


async def is_to_reconcile(bucket: StateBucket, pipeline: Pipeline, asked: Reconciling) -> bool:
    """Returns whether to reconcile: it was requested, its time has come, or the last one ended early."""
    record = await load_pipeline(bucket)
    if record is None or asked.now or not pipeline.reconcile_every_s:
        return record is not None and (asked.now or (record.is_reconciling and asked.target is not None))
    if record.is_reconciling or not record.reconciled_at:
        return True
    since = datetime.now(UTC) - datetime.fromisoformat(record.reconciled_at)
    return abs(since.total_seconds()) >= pipeline.reconcile_every_s  # a clock that was ahead may have noted the last one


async def differing(target: TargetKeys, reader: QueryReader, keys: KeysOf) -> list[int]:
    """Returns buckets in which the target has keys that may be gone. The reader's snapshot is newer than what was read
    of the target."""
    source = _by_bucket(await reader.rows(keys.digests(target.buckets)))
    return sorted(bucket for bucket, digest in target.digests.items() if source.get(bucket) != digest)


async def seemingly_gone(
    target: TargetTableKeys, buckets: int, chosen: Sequence[int], reader: QueryReader, keys: KeysOf
) -> tuple[list[tuple[str, ...]], int]:
    """Returns keys of those buckets that the reader's snapshot does not have, in order, and how many were read. No
    others are held here, however many there are on either side."""
    if not chosen:
        return [], 0
    gone, rows_read = [], 0
    async with (
        aclosing(target.keys_in(buckets, chosen)) as there,
        aclosing(reader.stream(keys.keys_in(buckets, chosen))) as here,
    ):
        next_here = await anext(here, None)
        async for key in there:
            rows_read += 1
            while next_here is not None and next_here < key:
                next_here, rows_read = await anext(here, None), rows_read + 1
            if next_here != key:
                gone.append(key)
        async for _ in here:
            rows_read += 1
    return gone, rows_read + (next_here is not None)


def source_keys(query: QuerySql) -> KeysOf:
    return KeysOf(query.rows, query.pipeline.key)


def key_columns(query: QuerySql) -> list[Column]:
    by_name = {column.name: column for column in query.table.columns}
    return [by_name[name] for name in query.pipeline.key]


def _by_bucket(rows: Sequence[tuple[Any, ...]]) -> dict[int, tuple[int, str]]:
    return {int(bucket): (int(count), str(total)) for bucket, count, total in rows}


def deleting_run(record: PipelineRecord, newest: RunRecord, rows: int, lsn: int) -> RunRecord:
    """Returns the run that deletes rows. Its one range holds the rows to delete."""
    return RunRecord(
        number=newest.number + 1,
        state=RunState.READING,
        is_full=False,
        started_at=now(),
        rows=rows,
        last=record.checkpoint,
        border=record.reread_from,
        ranges=(RangeRecord(record.next_range, (), ()),),
        version=record.next_version(lsn),
        reconciles=True,
    )
