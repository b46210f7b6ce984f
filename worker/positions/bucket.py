"""The position of a sink that has no better place for it: under ``position.<worker>`` in the group's state bucket.

Each write names the revision that this process read or wrote last, so of two processes that run one worker name only one can
move the position; the other stops.

The record can also hold *announced ends*: where a batch ended that was begun and perhaps not applied. A sink that cuts its output
at the end of a batch announces it first, so that a successor, which may find more messages, can cut there again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import Ledger, LedgerContent
from pgsluice.shared.broker.worker_records import PositionRecord, position_key
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import format_lsn, parse_lsn
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, CatchUp, Lane

CLOSE_TIMEOUT_S = 5.0


class AnnouncedEnd(NamedTuple):
    """The end of a batch of that lane."""

    lane: Lane
    sequence: int


class BucketPositions:
    """Blocking calls over a separate NATS connection, made by ``load``. TransientError when NATS does not answer."""

    def __init__(self, settings: NatsSettings, group: str, worker: str) -> None:
        self._settings = settings
        self._names = GroupNames(group)
        self._worker = worker
        self._key = position_key(worker)
        self._writer = uuid.uuid4().hex
        self._revision: int | None = None
        self._loop: EventLoopThread | None = None
        self._client: Client | None = None
        self._bucket: StateBucket | None = None
        self._stored = NOTHING_APPLIED
        self._ends: tuple[AnnouncedEnd, ...] = ()

    def load(self) -> Applied:
        """Returns the stored position, NOTHING_APPLIED without one. The bucket must exist."""
        if self._loop is None:
            self._loop = EventLoopThread("pgsluice-positions")
        if self._client is None:
            self._client = self._loop.run(connect(self._settings, f"pgsluice worker {self._names.group}/{self._worker} position"))
        self._bucket = StateBucket(self._client, self._names)
        entry = self._loop.run(self._bucket.read(self._key, PositionRecord))
        self._revision = entry.revision if entry else None
        self._stored, self._ends = _content(entry.value) if entry else (NOTHING_APPLIED, ())
        return self._stored

    def announced_ends(self, lane: Lane) -> list[int]:
        """Returns the sequences of that lane that were announced and are not applied yet, ascending."""
        return sorted(end.sequence for end in self._ends if end.lane is lane)

    def announce_end(self, sequence: int, lane: Lane) -> None:
        """Like ``store``, but the position stays. Writes nothing when that end is announced already."""
        assert self._loop is not None, "load comes first"
        end = AnnouncedEnd(lane, sequence)
        if end not in self._ends:
            ends = (*self._ends, end)
            self._loop.run(self._store(self._stored, ends))
            self._ends = ends

    def store(self, applied: Applied) -> None:
        """Stores the position, which is durable when it returns. Raises TerminalError when another process moved the
        position since ``load``; after a TransientError it may or may not be stored, and may be stored again."""
        assert self._loop is not None, "load comes first"
        ends = tuple(end for end in self._ends if end.sequence > applied.sequence_in(end.lane))
        self._loop.run(self._store(applied, ends))
        self._stored, self._ends = applied, ends

    def renumber(self, applied: Applied) -> None:
        """Like ``store``, when the stream is numbered again: ends that were announced by the old sequences are invalid."""
        assert self._loop is not None, "load comes first"
        self._loop.run(self._store(applied, ()))
        self._stored, self._ends = applied, ()

    def ledger(self, oids: Iterable[int] | None = None) -> LedgerContent:
        """Returns the bucket's records of the copies of these tables, or of all. May be called from another thread than
        the one that stores."""
        assert self._loop is not None, "load comes first"
        assert self._bucket is not None
        ledger = Ledger(self._bucket)
        return self._loop.run(ledger.load() if oids is None else ledger.load_tables(oids))

    def close(self) -> None:
        """Closes the connection, if any."""
        loop, client = self._loop, self._client
        self._loop = self._client = self._bucket = None
        if loop is None:
            return
        try:
            if client is not None:
                loop.run(disconnect(client), CLOSE_TIMEOUT_S)
        finally:
            loop.close()

    async def _store(self, applied: Applied, ends: tuple[AnnouncedEnd, ...]) -> None:
        revision = await self._write(applied, ends)
        if revision is None and await self._adopt_own_write():
            revision = await self._write(applied, ends)
        if revision is None:
            raise TerminalError(
                f"another process moved the position of worker '{self._worker}' of group '{self._names.group}'",
                "give each worker of a group its own --name; when started again, the worker continues from the stored position",
            )
        self._revision = revision

    async def _write(self, applied: Applied, ends: tuple[AnnouncedEnd, ...]) -> int | None:
        """Writes; returns the new revision, or None when the position is not as this process left it."""
        assert self._bucket is not None, "load comes first"
        record = PositionRecord(
            sequence=applied.sequence,
            commit_lsn=format_lsn(applied.commit_lsn),
            committed_at=applied.committed_at,
            stream_created=applied.stream_created,
            snapshot_sequence=applied.snapshot_sequence,
            rules=applied.rules,
            announced=tuple((end.lane is Lane.COPIED, end.sequence) for end in ends if end.lane is not Lane.CATCH_UP),
            announced_catch_up=tuple(end.sequence for end in ends if end.lane is Lane.CATCH_UP),
            catch_up="" if applied.catch_up is None else applied.catch_up.encode(),
            writer=self._writer,
        )
        if self._revision is None:
            return await self._bucket.create(self._key, record)
        return await self._bucket.update(self._key, record, self._revision)

    async def _adopt_own_write(self) -> bool:
        """Accepts a write whose acknowledgement was lost: it left this process's record under an unknown revision."""
        assert self._bucket is not None, "load comes first"
        entry = await self._bucket.read(self._key, PositionRecord)
        if entry is None or entry.value.writer != self._writer:
            return False
        self._revision = entry.revision
        return True


def _content(record: PositionRecord) -> tuple[Applied, tuple[AnnouncedEnd, ...]]:
    applied = Applied(
        sequence=record.sequence,
        commit_lsn=parse_lsn(record.commit_lsn),
        committed_at=record.committed_at,
        stream_created=record.stream_created,
        snapshot_sequence=record.snapshot_sequence,
        rules=record.rules,
        catch_up=CatchUp.decode(record.catch_up),
    )
    ends = [AnnouncedEnd(Lane.COPIED if copied else Lane.CHANGES, sequence) for copied, sequence in record.announced]
    return applied, (*ends, *(AnnouncedEnd(Lane.CATCH_UP, sequence) for sequence in record.announced_catch_up))
