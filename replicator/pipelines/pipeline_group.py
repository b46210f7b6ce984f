"""The group of a pipeline, which one run at a time publishes into: locked, its streams made, and its workers waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nats.aio.client import Client

from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.retention import FinishedCopyRetention, copied_by_all
from pgsluice.replicator.snapshot.export import CHECK_INTERVAL_S
from pgsluice.replicator.snapshot.group_lock import try_lock_group, unlock_group
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.pipelines.pipeline_settings import PipelineSettings
from pgsluice.shared.pipelines.run_records import load_pipeline
from pgsluice.shared.units.unit_wait import UnitWait
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, format_lsn
from pgsluice.shared.wire.table import Table

T = TypeVar("T")

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The origin of a run's rows, and its LSN."""

    system_id: str
    database: str
    lsn: LSN


async def lock_run(source: Source, pipeline: Pipeline) -> None:
    """Raises TransientError while another run of the pipeline reads."""
    if not await try_lock_group(source, pipeline.group):
        raise TransientError(
            f"another run of pipeline '{pipeline.name}' reads",
            "wait for its end; one that was killed is gone for the source in a moment",
            Cause.LOCK,
        )


async def watch_lock(source: Source) -> None:
    """Ends only by raising TransientError: the connection is gone, and with it the lock. Regular queries keep proxies
    from closing it as idle."""
    while True:
        await source.rows("keeping the pipeline locked", "SELECT 1")
        await asyncio.sleep(CHECK_INTERVAL_S)


async def while_locked(source: Source, call: Coroutine[Any, Any, T]) -> T:
    """Returns the result of ``call``, which is cancelled when the lock is gone: raises as ``watch_lock``."""
    given = []

    async def calling() -> None:
        given.append(await call)

    await run_until_first([calling(), watch_lock(source)])
    return given[0]


async def unlock_run(source: Source, pipeline: Pipeline) -> None:
    """Unlocks. If the connection has ended, so has the lock."""
    with suppress(PgsluiceError):
        await unlock_group(source, pipeline.group)


async def make_streams(settings: PipelineSettings, pipeline: Pipeline, client: Client) -> None:
    """Raises UsageError when a replicator publishes into the group."""
    names = GroupNames(pipeline.group)
    bucket, stream = StateBucket(client, names), SnapshotStream(client, names)
    is_foreign = (
        await bucket.exists() and await load_pipeline(bucket) is None and await Ledger(bucket).load_snapshot() is not None
    )
    if is_foreign or await ChangeStream(client, names).state() is not None:
        raise UsageError(
            f"group {names.group!r} is a replicator's", f"give pipeline '{pipeline.name}' a separate group ('group: …')"
        )
    await stream.ensure(settings.stream)
    await bucket.ensure(settings.stream)
    record = await load_pipeline(bucket)
    if record is not None and record.pipeline != pipeline.name:
        raise UsageError(f"group {names.group!r} is that of pipeline '{record.pipeline}'", "give each pipeline a separate group")
    if record is None or record.unfinished is None:
        await FinishedCopyRetention(stream, bucket, settings.stream.retention_s).purge()


async def wait_for_workers(client: Client, names: GroupNames, last_sequence: int) -> None:
    """Returns when every worker of the group has applied that message; waits for the first one, too. Raises as
    ``UnitWait.until``."""
    bucket = StateBucket(client, names)

    async def look() -> Sequence[str] | None:
        if await copied_by_all(bucket) >= last_sequence:
            return None
        reports = await read_reports(bucket)
        return [worker_unit(name) for name, report in reports.items() if report.snapshot_sequence < last_sequence]

    stays = "the rows stay in the stream, and the worker applies them when it is started again"
    await UnitWait(bucket, undone="and has not applied the rows", stays=stays, wait_s=None).until(look)


async def begin_in_ledger(client: Client, names: GroupNames, origin: RunOrigin, snapshot: str, table: Table) -> int:
    """Writes the records that workers need before they apply rows; returns the revision of the table's record. Raises
    TerminalError when the stream is not the one that the pipeline published into."""
    ledger = Ledger(StateBucket(client, names))
    state, known = await SnapshotStream(client, names).state(), await ledger.load_snapshot()
    created = "" if state is None else state.created
    if known is not None and known.stream_created != created:
        raise TerminalError(
            f"stream {names.snapshot_stream} was created again since the pipeline ran last",
            f"run 'pgsluice drop --nats-only --group {names.group}', and the pipeline again",
        )
    lsn = format_lsn(origin.lsn)
    await ledger.store_snapshot(
        SnapshotRecord(
            id=snapshot,
            lsn=lsn,
            state=CopyState.RUNNING,
            mode=CopyMode.COPY,
            started_at=now(),
            finished_at="",
            last_sequence=0,
            system_id=origin.system_id,
            database=origin.database,
            stream_created=created,
        )
    )
    copied = TableRecord(table.oid, table.schema, table.name, Phase.DATA_SYNC, now(), snapshot, lsn, began_at=now())
    return await ledger.store_table(copied)


async def end_in_ledger(client: Client, names: GroupNames) -> int:
    """Ends the run in the ledger, however it ended: what is published counts. Returns where the stream ends."""
    ledger, state = Ledger(StateBucket(client, names)), await SnapshotStream(client, names).state()
    snapshot, last_sequence = await ledger.load_snapshot(), 0 if state is None else state.last_sequence
    if snapshot is None or snapshot.state is CopyState.FINISHED:
        return last_sequence
    for record in (await ledger.load()).tables.values():
        if record.phase is Phase.DATA_SYNC:
            await ledger.store_table(record.enter(Phase.FINISHED_COPY, last_sequence=last_sequence))
    ended = replace(snapshot, state=CopyState.FINISHED, finished_at=now(), last_sequence=last_sequence)
    await ledger.store_snapshot(ended)
    return last_sequence
