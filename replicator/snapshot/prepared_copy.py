"""One group's copy as recorded in the ledger, while a replicator runs: tables are added and removed, rounds work on them.

All changes of the ledger's tables in this process are made here, under one lock: the copy as a whole is RUNNING for as
long as a table waits, and workers rely on that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from pgsluice.replicator.snapshot.copy_state import CopyCause, CopyWishes, anew, leave, replaced_by, resume_copy, without_copy
from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.replicator.source.source import SourceFacts
from pgsluice.replicator.source.tables import SourceTable
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyState, Ledger, Phase, Retry, SnapshotRecord, TableRecord, now
from pgsluice.shared.broker.streams import SnapshotStream, StreamState
from pgsluice.shared.errors import PgsluiceError, TerminalError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, format_lsn, parse_lsn

log = telemetry.logger(__name__)


@dataclass(slots=True)
class PreparedCopy:
    """``record`` is the ledger's of the copy as a whole, ``progress`` has the records of the group's tables. ``work``
    is set when there may be a table to copy, ``idle`` while the rounds have none; ``held`` are oids of tables that wait
    and are not published yet: a copy of theirs would be too old. ``snapshot_since`` is when the current snapshot was
    opened, by the monotonic clock."""

    names: GroupNames
    facts: SourceFacts
    system_id: str
    stream: SnapshotStream
    bucket: StateBucket
    ledger: Ledger
    record: SnapshotRecord
    progress: TableProgress
    work: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    held: set[int] = field(default_factory=set)
    snapshot_since: float | None = None
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def store(self, record: SnapshotRecord) -> None:
        await self.ledger.store_snapshot(record)
        self.record = record

    async def note_snapshot(self, id: str, lsn: LSN) -> None:
        """Notes the newest snapshot."""
        async with self._changing:
            await self.store(replace(self.record, id=id, lsn=format_lsn(lsn)))

    async def stream_state(self) -> StreamState:
        """Returns the state of the snapshot stream. Raises TerminalError when it no longer exists."""
        state = await self.stream.state()
        if state is None:
            raise TerminalError(f"stream {self.stream.name} is gone", "run 'pgsluice drop' and start again")
        return state

    @property
    def ready(self) -> list[TableRecord]:
        """The tables that the next round may copy."""
        return [record for record in self.progress.waiting if record.oid not in self.held]

    async def take_up(self, tables: Collection[SourceTable], wishes: CopyWishes) -> None:
        """Writes into the ledger which of ``tables`` must be copied, being new to it or requested again. Call it before
        any change of a new one can be published; ``begin`` starts their copy. A table whose name one of them has now
        left before."""
        async with self._changing:
            await self.progress.write()
            content = await self.ledger.load()
            changed = resume_copy(content, tables, wishes).changed
            if changed:
                await self._run_on()
            for record in changed:
                self.held.add(record.oid)
                self.progress.put(record)
            for record in replaced_by(changed, content):
                self.progress.put(record)
            await self.progress.write()

    def begin(self, oids: Collection[int]) -> None:
        """Notes that these are published now; the rounds copy them."""
        self.held.difference_update(oids)
        if self.ready:
            self.idle.clear()
        self.work.set()

    async def copy_again(self, causes: Mapping[int, CopyCause], *, is_held: bool = False) -> None:
        """Writes into the ledger that these tables, by oid, are copied again, unless a copy of theirs holds what happened, or
        comes anyway. To be called before what happened is published. ``is_held``: they wait for ``begin``."""
        async with self._changing:
            needed = {oid: record for oid, cause in causes.items() if (record := self._needed(oid, cause)) is not None}
            if not needed:
                return
            await self._run_on()
            if is_held:
                self.held.update(needed)
            for oid, record in needed.items():
                log.warning("a table is copied again", table=record.qualified_name, reason=causes[oid].reason)
                self.progress.put(record)
            await self.progress.write()
        if not is_held:
            self.begin(needed)

    async def discount(self, causes: Mapping[int, CopyCause]) -> None:
        """Discounts what the copies of tables that left held, by oid, for no copy comes that holds what happened. So
        workers leave out their changes. To be called before what happened is published."""
        if not causes:
            return
        async with self._changing:
            known = (await self.ledger.load()).tables
            stale = [
                record for oid, cause in causes.items() if (record := known.get(oid)) is not None and _is_stale(record, cause)
            ]
            for record in stale:
                log.warning(
                    "a table left before it could be copied again", table=record.qualified_name, reason=causes[record.oid].reason
                )
                self.progress.put(without_copy(record))
            if stale:
                await self.progress.write()
                await self._end_or_tell()

    def _needed(self, oid: int, cause: CopyCause) -> TableRecord | None:
        """Returns the record of the table's next copy; None when it needs none."""
        record = self.progress.get(oid)
        if record is None:  # it is published without a copy, so the target may contain rows of it
            return TableRecord(oid, cause.schema, cause.table, Phase.INIT, now(), attempt=2)
        if record.phase not in (Phase.DATA_SYNC, Phase.FINISHED_COPY) or _holds(record, cause):
            return None
        return anew(record)

    async def note_left(self, oids: Collection[int]) -> None:
        """Removes tables that are no longer followed from the ledger's copy."""
        async with self._changing:
            self.held.difference_update(oids)
            records = [
                record for oid in oids if (record := self.progress.get(oid)) is not None and record.phase is not Phase.LEFT
            ]
            for record in records:
                self.progress.put(leave(record))
            if records:
                await self.progress.write()
                await self._end_or_tell()

    async def drop_out(self, oid: int) -> None:
        """Removes a table that waits, and is gone or another by now."""
        record = self.progress.get(oid)
        if record is not None and not record.snapshot:
            self.held.discard(oid)
            await self.forget([oid])
        else:
            await self.note_left([oid])

    async def note_errored(self, oid: int, error: PgsluiceError, retry: Retry | None = None) -> None:
        """Notes why a table that waits cannot be copied now."""
        async with self._changing:
            self.held.discard(oid)
            self.progress.note_errored(oid, error, retry)
            await self.progress.write()
            await self._end_or_tell()

    async def forget(self, oids: Collection[int]) -> None:
        """Forgets these tables; none of them may be followed."""
        async with self._changing:
            for oid in oids:
                await self.progress.forget(oid)
            await self._end_or_tell()

    async def finish(self) -> bool:
        """Records in the ledger that every table is copied, errored or gone. False when one waits."""
        async with self._changing:
            await self.progress.write()
            if self.progress.waiting:
                return False
            if self.record.state is CopyState.RUNNING:
                await self._end_or_tell()
            return True

    async def _run_on(self) -> None:
        if self.record.state is not CopyState.RUNNING:
            await self.store(replace(self.record, state=CopyState.RUNNING, finished_at="", last_sequence=0))

    async def _end_or_tell(self) -> None:
        """Ends a copy that has nothing left to do; else has workers notice, by the record's revision, what was changed."""
        if self.record.state is CopyState.RUNNING and not self.progress.waiting:
            last_sequence = (await self.stream_state()).last_sequence
            ended = replace(self.record, state=CopyState.FINISHED, finished_at=now(), last_sequence=last_sequence)
            await self.store(ended)
        else:
            await self.store(self.record)


def _holds(record: TableRecord, cause: CopyCause) -> bool:
    """Returns whether the table's copy is later than what happened."""
    return record.lsn != "" and cause.lsn < parse_lsn(record.lsn)


def _is_stale(record: TableRecord, cause: CopyCause) -> bool:
    return record.phase is Phase.LEFT and record.lsn != "" and not _holds(record, cause)
