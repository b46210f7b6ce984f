"""The state of each table's copy, in the group's state bucket: written by the replicator, read by workers and operators.

Keys: ``snapshot`` (the newest copy as a whole), ``table.<oid>`` (one table, under the oid that its rows are published
under).

Order of writes, on which workers rely:

1. ``snapshot`` with state RUNNING and every table to be copied as INIT, before the first change of the group is published;
2. a table as DATA_SYNC without snapshot and LSN, before the snapshot is exported that will copy it;
3. the same with snapshot and LSN, before its begin message is published;
4. FINISHED_COPY with ``last_sequence`` after JetStream acknowledged every range; ERRORED at any time after 1;
5. ``snapshot`` with state FINISHED after every table is FINISHED_COPY, ERRORED or LEFT.

A copy that was interrupted continues with 2 for the tables that are not finished; their ``attempt`` grows, and what was
published of them under the earlier snapshot no longer counts.

Tables join and are copied again while the group streams. For them it begins again with 1: ``snapshot`` as RUNNING, then
the table as INIT, before it is published, or before the definition is published that asks for its copy. Changes of a
table that commit below the LSN of 3 are the copy's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pgsluice.shared.broker.bucket import BucketEnd, Entry, StateBucket
from pgsluice.shared.broker.record import LsnText, TimeText

_SNAPSHOT_KEY = "snapshot"
_TABLE_PREFIX = "table."


class CopyMode(enum.StrEnum):
    COPY = "copy"
    COPY_AND_STREAM = "copy-and-stream"


class CopyState(enum.StrEnum):
    RUNNING = "running"
    FINISHED = "finished"


class Phase(enum.StrEnum):
    """The state of a table. The replicator writes all but SYNC_WAIT, CATCHUP and READY, which follow from a worker's
    position: a worker that has applied the copy is catching up until it has passed the table's LSN in the change
    stream; SYNC_WAIT is a table that waits for the tables copied with it. A table that LEFT the group keeps what its
    copy holds, for workers that have not applied all of it, and is copied again when it returns."""

    INIT = "init"
    DATA_SYNC = "data_sync"
    FINISHED_COPY = "finished_copy"
    SYNC_WAIT = "sync_wait"
    CATCHUP = "catchup"
    READY = "ready"
    ERRORED = "errored"
    LEFT = "left"

    @property
    def is_waiting_for_copy(self) -> bool:
        """No change of any table may be applied while one table is in such a phase."""
        return self in (Phase.INIT, Phase.DATA_SYNC)


class Retry(enum.StrEnum):
    """The next action for a table that is ERRORED."""

    NONE = "none"
    """No retry: it cannot be copied. An earlier version wrote it for tables that were dropped."""
    MANUAL = "manual"
    """No retry before an operator has removed the cause and requests one."""
    TIMED = "timed"
    """Retried automatically, at ``TableRecord.retry_at``."""


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """``id`` and ``lsn`` are those of the newest snapshot, "" before the first was exported. ``last_sequence`` is where the
    snapshot stream ended when the copy finished, 0 before. The last three fields identify source and snapshot stream."""

    id: str
    lsn: LsnText
    state: CopyState
    mode: CopyMode
    started_at: TimeText
    finished_at: TimeText
    last_sequence: int
    system_id: str
    database: str
    stream_created: str


@dataclass(frozen=True, slots=True)
class TableRecord:
    """``snapshot`` and ``lsn`` are "" until both are known. The copy holds exactly the transactions whose commit LSN is below
    ``lsn``. ``attempt`` counts from 1; the newest began at ``began_at``. ``bytes`` are those of COPY text, ``bytes_total`` those
    of the table's pages.

    ``last_sequence`` comes with FINISHED_COPY and is 0 before: every row of this copy is in the snapshot stream at that sequence
    or before. Copies that an earlier version finished have 0. ``retry`` is of an ERRORED table, ``failures`` how often in a row
    it became one since its copy was finished.
    """

    oid: int
    schema: str
    table: str
    phase: Phase
    since: TimeText
    snapshot: str = ""
    lsn: LsnText = ""
    attempt: int = 1
    began_at: TimeText = ""
    rows: int = 0
    bytes: int = 0
    bytes_total: int = 0
    ranges_done: int = 0
    ranges: int = 0
    error: str = ""
    remedy: str = ""
    last_sequence: int = 0
    retry: Retry = Retry.MANUAL
    retry_at: TimeText = ""
    failures: int = 0

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"

    def is_due(self, at: datetime) -> bool:
        """Returns whether the table is ERRORED and to be tried again by then."""
        is_timed = self.phase is Phase.ERRORED and self.retry is Retry.TIMED and bool(self.retry_at)
        return is_timed and datetime.fromisoformat(self.retry_at) <= at

    def enter(self, phase: Phase, **changes: Any) -> TableRecord:
        """Returns the table in ``phase`` from now on."""
        return replace(self, phase=phase, since=now(), **changes)


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """``snapshot`` is None if no table was ever copied. ``tables`` and their ``revisions`` are by oid. Includes all
    writes to tables up to ``revision``."""

    snapshot: SnapshotRecord | None
    tables: dict[int, TableRecord]
    revisions: dict[int, int] = field(default_factory=dict, compare=False)
    revision: int = field(default=0, compare=False)

    def last_copied(self, record: TableRecord) -> int | None:
        """Returns the last message of the rows of a table whose copy is finished; None while that is not known. An
        earlier version did not note it for each table."""
        if record.last_sequence:
            return record.last_sequence
        is_over = self.snapshot is not None and self.snapshot.state is CopyState.FINISHED
        return self.snapshot.last_sequence if is_over and self.snapshot is not None else None


_NOTHING = LedgerContent(None, {})


class Ledger:
    """The ledger in a bucket. Methods raise as StateBucket's do."""

    def __init__(self, bucket: StateBucket) -> None:
        self._bucket = bucket
        self._loaded = _NOTHING
        self._end = BucketEnd("", 0)
        """End of the bucket at the last read."""

    async def load(self) -> LedgerContent:
        """Reads what was written since the last call, and returns the same object when that is nothing: a batch asks
        more than once, and a group may have thousands of tables. Reads everything when the bucket is another than at
        the last call, or was restored from an older copy. Raises TerminalError when a record is not of this version's
        form."""
        end = await self._bucket.end()
        before, after = (self._loaded, self._end.revision) if end.may_follow(self._end) else (_NOTHING, 0)
        snapshot, newest = await self.load_snapshot(), after
        tables, revisions = dict(before.tables), dict(before.revisions)
        async for written in self._bucket.written(f"{_TABLE_PREFIX}*", after):
            newest = written.revision
            if written.value is None:
                oid = _oid_of(written.key)
                tables.pop(oid, None)
                revisions.pop(oid, None)
            else:
                record = self._bucket.decoded(written.key, TableRecord, written.value)
                tables[record.oid], revisions[record.oid] = record, newest
        self._end = replace(end, revision=max(end.revision, newest))
        if snapshot != before.snapshot or newest > after:
            before = LedgerContent(snapshot, tables, revisions, self._end.revision)
        self._loaded = before
        return before

    async def load_tables(self, oids: Iterable[int]) -> LedgerContent:
        """Returns the records of these tables, and of the newest copy; a group may have thousands of others."""
        snapshot = await self.load_snapshot()
        entries = [await self._bucket.read(f"{_TABLE_PREFIX}{oid}", TableRecord) for oid in sorted(set(oids))]
        return LedgerContent(snapshot, {entry.value.oid: entry.value for entry in entries if entry is not None})

    async def load_snapshot(self) -> SnapshotRecord | None:
        entry = await self.snapshot_entry()
        return None if entry is None else entry.value

    async def snapshot_entry(self) -> Entry[SnapshotRecord] | None:
        """Returns None when nothing was ever copied."""
        return await self._bucket.read(_SNAPSHOT_KEY, SnapshotRecord)

    async def store_snapshot(self, record: SnapshotRecord) -> None:
        await self._bucket.put(_SNAPSHOT_KEY, record)

    async def store_table(self, record: TableRecord) -> int:
        """Stores the record; returns its revision."""
        return await self._bucket.put(f"{_TABLE_PREFIX}{record.oid}", record)

    async def remove_table(self, oid: int) -> None:
        await self._bucket.delete(f"{_TABLE_PREFIX}{oid}")


def _oid_of(key: str) -> int:
    """Returns 0 for a key that is no table's: another client wrote and removed it."""
    oid = key.removeprefix(_TABLE_PREFIX)
    return int(oid) if oid.isascii() and oid.isdecimal() else 0


def now() -> str:
    return datetime.now(UTC).isoformat()
