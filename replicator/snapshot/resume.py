"""What is left to copy, by the ledger: pure but for the check of a group that only streams."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from replicator.tables import SourceTable
from shared.errors import TerminalError, UsageError
from shared.ledger import CopyMode, CopyState, Ledger, LedgerContent, Phase, SnapshotRecord, TableRecord, now
from shared.state import StateBucket

_START_AGAIN = "run 'pgsluice drop' and start again with an empty target"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a copy comes from and goes to: what may not change between two starts."""

    system_id: str
    database: str
    stream_created: str


@dataclass(frozen=True, slots=True)
class Resumption:
    """``records`` are the selected tables. ``changed`` are those of them that are to be stored, being new or taken up again;
    ``stale`` are oids whose records are to be removed: tables no longer selected, which would be waited for in vain."""

    records: list[TableRecord]
    changed: list[TableRecord]
    stale: list[int]


def resume_copy(content: LedgerContent, tables: Collection[SourceTable], retry_errored: bool) -> Resumption:
    """A table that is finished stays so; one that is errored is taken up again only when asked for."""
    records, changed = [], []
    for table in tables:
        record = content.tables.get(table.oid)
        if record is None:
            record = TableRecord(table.oid, table.schema, table.name, Phase.INIT, now())
            changed.append(record)
        elif record.phase is Phase.ERRORED and retry_errored:
            record = record.enter(Phase.INIT, error="", remedy="")
            changed.append(record)
        records.append(record)
    selected = {table.oid for table in tables}
    stale = [record.oid for record in content.waiting_tables if record.oid not in selected]
    return Resumption(records, changed, stale)


def begin_attempt(record: TableRecord) -> TableRecord:
    """The record of a table whose copy begins, or begins again when a snapshot had begun it before."""
    return record.enter(
        Phase.DATA_SYNC,
        attempt=record.attempt + 1 if record.snapshot else record.attempt,
        snapshot="",
        lsn="",
        began_at="",
        rows=0,
        bytes=0,
        bytes_total=0,
        ranges_done=0,
        ranges=0,
    )


def check_origin(snapshot: SnapshotRecord | None, origin: Origin, mode: CopyMode) -> None:
    """Raises TerminalError when the earlier copy cannot be continued, UsageError when it may not be."""
    if snapshot is None:
        return
    if (snapshot.system_id, snapshot.database) != (origin.system_id, origin.database):
        raise TerminalError(
            f"this group copied database {snapshot.database!r} of system {snapshot.system_id}, the source is database "
            f"{origin.database!r} of system {origin.system_id}",
            f"check host and dbname; for another source use another group, or {_START_AGAIN}",
        )
    if snapshot.stream_created != origin.stream_created:
        raise TerminalError("the snapshot stream was deleted and made again: copied rows are gone", _START_AGAIN)
    if snapshot.mode is not mode:
        raise UsageError(
            f"this group was started with --{snapshot.mode}, not with --{mode}",
            f"give --{snapshot.mode}; to copy in another way, {_START_AGAIN}",
        )


async def check_streaming_alone(bucket: StateBucket) -> None:
    """Raises UsageError when a group with a copy is started without it: workers would wait for it, or changes be missing."""
    snapshot = await Ledger(bucket).load_snapshot() if await bucket.exists() else None
    if snapshot is None:
        return
    if snapshot.mode is CopyMode.COPY:
        raise UsageError(
            "this group was copied with --copy; the changes since then are not known",
            f"to copy and go on with the changes, {_START_AGAIN} and --copy-and-stream",
        )
    if snapshot.state is CopyState.RUNNING:
        raise UsageError("the copy of this group's tables is not finished", "start with --copy-and-stream, which finishes it")
