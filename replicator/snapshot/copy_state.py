"""The tables left to copy, by the ledger; and the tables that the ledger calls followed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import assert_never

from pgsluice.replicator.source.tables import SourceTable
from pgsluice.shared.broker.ledger import CopyMode, Ledger, LedgerContent, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.errors import START_AGAIN, TerminalError, UsageError
from pgsluice.shared.wire.position import LSN


@dataclass(frozen=True, slots=True)
class CopyOrigin:
    """The source and the stream of a copy, which must not change between two starts."""

    system_id: str
    database: str
    stream_created: str


@dataclass(frozen=True, slots=True)
class CopyWishes:
    """Requests of a start to the ledger. ``recopied`` are oids that are copied again although they are finished;
    ``followed`` are oids whose changes are published without a break until now, None if unknown; ``known_names`` are
    tables that the group has published before, under whatever oid."""

    retry_errored: bool = False
    recopied: frozenset[int] = frozenset()
    followed: frozenset[int] | None = None
    known_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CopyCause:
    """The reason why a table's rows must be copied again: an event without messages, committed at ``lsn``."""

    schema: str
    table: str
    lsn: LSN
    reason: str


@dataclass(frozen=True, slots=True)
class CopyResumption:
    """``records`` are the selected tables. ``changed`` are the ones among them to store, being new or taken up again;
    ``left`` are records to store of tables that are no longer selected."""

    records: list[TableRecord]
    changed: list[TableRecord]
    left: list[TableRecord]


def resume_copy(content: LedgerContent, tables: Collection[SourceTable], wishes: CopyWishes) -> CopyResumption:
    """A table that is finished stays so, unless its changes were not all published since; one that is errored is taken up again
    only when asked for."""
    records, changed = [], []
    for table in tables:
        known = content.tables.get(table.oid)
        record = _first_attempt(content, table, wishes) if known is None else _resumed(known, wishes)
        if record.phase.is_waiting_for_copy:
            record = replace(record, schema=table.schema, table=table.name)
        records.append(record)
        if record != known:
            changed.append(record)
    selected = {table.oid for table in tables}
    names = {table.qualified_name for table in tables}
    gone = [record for record in content.tables.values() if record.oid not in selected]
    left = [leave(record, is_replaced=record.qualified_name in names) for record in gone]
    return CopyResumption(records, changed, [new for new, old in zip(left, gone, strict=True) if new != old])


def _first_attempt(content: LedgerContent, table: SourceTable, wishes: CopyWishes) -> TableRecord:
    """Returns the first attempt. If a table was created again under its name, or published before it was copied, the
    target has rows of it: the attempt is then numbered as a further one, which empties the target's table."""
    attempts = [record.attempt for record in content.tables.values() if record.qualified_name == table.qualified_name]
    if table.qualified_name in wishes.known_names:
        attempts.append(1)
    return TableRecord(table.oid, table.schema, table.name, Phase.INIT, now(), attempt=max(attempts, default=0) + 1)


def _resumed(record: TableRecord, wishes: CopyWishes) -> TableRecord:
    is_followed = wishes.followed is None or record.oid in wishes.followed
    match record.phase:
        case Phase.ERRORED:
            again = wishes.retry_errored or record.oid in wishes.recopied
        case Phase.FINISHED_COPY:
            again = record.oid in wishes.recopied or not is_followed
        case Phase.LEFT:
            again = True
        case Phase.INIT | Phase.DATA_SYNC | Phase.SYNC_WAIT | Phase.CATCHUP | Phase.READY:
            again = False
        case unreachable:
            assert_never(unreachable)
    return anew(record) if again else record


def anew(record: TableRecord) -> TableRecord:
    """Returns the record of a table to copy; an existing copy becomes invalid."""
    return without_copy(record).enter(Phase.INIT, error="", remedy="", retry_at="")


def leave(record: TableRecord, *, is_replaced: bool = False) -> TableRecord:
    """Returns the record of a table that is no longer selected. What its copy holds still counts, when it was finished
    and the table's place at the target was not taken by another one (``is_replaced``)."""
    keeps_copy = bool(record.lsn) and record.phase in (Phase.FINISHED_COPY, Phase.LEFT) and not is_replaced
    kept = record if keeps_copy else without_copy(record)
    if record.phase is Phase.LEFT:
        return kept
    fact = (
        "another table has its name now"
        if is_replaced
        else "it is no longer among the tables; its changes since then are not published"
    )
    remedy = "" if is_replaced else "when it returns it is resynced"
    return kept.enter(Phase.LEFT, error=fact, remedy=remedy)


def replaced_by(changed: Collection[TableRecord], content: LedgerContent) -> list[TableRecord]:
    """Returns records of tables that left, and whose places at the targets the tables in ``changed`` take: their copies
    become invalid. A worker that lags applies copied rows first, and would apply changes of the former table to the
    later one."""
    oids, names = {record.oid for record in changed}, {record.qualified_name for record in changed}
    left = [record for record in content.tables.values() if record.phase is Phase.LEFT and record.oid not in oids]
    return [leave(record, is_replaced=True) for record in left if record.lsn and record.qualified_name in names]


def dropped(record: TableRecord) -> TableRecord:
    """Returns the record of a table that is gone before it could be copied."""
    return without_copy(record).enter(Phase.LEFT, error="it was dropped at the source", remedy="")


def without_copy(record: TableRecord) -> TableRecord:
    """Returns the record as if it had never been copied, except that the target may contain rows of it."""
    return replace(
        record,
        attempt=record.attempt + 1 if record.snapshot else record.attempt,
        snapshot="",
        lsn="",
        began_at="",
        rows=0,
        bytes=0,
        bytes_total=0,
        ranges_done=0,
        ranges=0,
        last_sequence=0,
    )


def begin_attempt(record: TableRecord) -> TableRecord:
    """Returns the record of a table whose copy begins, or begins again when a snapshot had begun it before."""
    return without_copy(record).enter(Phase.DATA_SYNC)


def check_copy_origin(snapshot: SnapshotRecord | None, origin: CopyOrigin, mode: CopyMode) -> None:
    """Raises TerminalError when the earlier copy cannot be continued, UsageError when it may not be."""
    if snapshot is None:
        return
    if (snapshot.system_id, snapshot.database) != (origin.system_id, origin.database):
        raise TerminalError(
            f"this group copied database {snapshot.database!r} of system {snapshot.system_id}, the source is database "
            f"{origin.database!r} of system {origin.system_id}",
            f"check host and dbname; for another source use another group, or {START_AGAIN}",
        )
    if snapshot.stream_created != origin.stream_created:
        raise TerminalError("the snapshot stream was deleted and created again: copied rows are gone", START_AGAIN)
    if snapshot.mode is not mode:
        raise UsageError(
            f"this group was started with mode {snapshot.mode}, not with mode {mode}",
            f"give --{snapshot.mode}; to copy in another way, {START_AGAIN}",
        )


async def note_membership(ledger: Ledger, oids: Collection[int]) -> None:
    """Records in the ledger of a group that copied its tables which of them are followed: a table that left, and one
    that is back without a copy, which a group that only streams may ask for."""
    content = await ledger.load()
    is_changed = False
    for record in content.tables.values():
        if record.oid not in oids and record.phase is not Phase.LEFT:
            await ledger.store_table(leave(record))
        elif record.oid in oids and record.phase is Phase.LEFT:
            is_changed = True
            if record.lsn:
                await ledger.store_table(record.enter(Phase.FINISHED_COPY, error="", remedy=""))
            else:
                await ledger.remove_table(record.oid)
    if is_changed and content.snapshot is not None:
        await ledger.store_snapshot(content.snapshot)  # by its revision workers notice
