"""A group whose changes a worker publishes, not a replicator: its stream, and the records that its own workers read.

Its stream is a change stream like any other (``shared.wire.message``), so any reader of one can read this one: any
worker, with its own rules, dead letters and positions. Copied rows are in it as inserts, because only a replicator has
a snapshot stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.published_tables import TABLES_KEY, PublishedTables, load_tables, store_tables
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord, publication_of_worker
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.rows.row_frames import own_table
from pgsluice.shared.wire.message import WHOLE, Chunk, MessageHeaders, counted_bytes, cut
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, Anchor, Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.nats.change_bodies import EMPTY_BODY, ChangeBody
from pgsluice.worker.sinks.nats.outgoing import Ends, Outgoing

NOTHING_FLUSHED = LSN(0)


@dataclass(frozen=True, slots=True)
class DerivedEnd:
    """The end of the stream, which the next message continues. ``anchor`` is the last complete message's."""

    sequence: int = 0
    settled: int = 0
    total_bytes: int = 0
    flushed: LSN = NOTHING_FLUSHED
    anchor: Anchor = NO_ANCHOR

    @classmethod
    def of(cls, sequence: int, headers: Mapping[str, str]) -> DerivedEnd:
        """Raises WireError when that message is not of a change stream."""
        last = MessageHeaders.decode(headers)
        anchor = last.anchor if last.chunk.is_last else last.after
        return cls(sequence, last.settled, last.total_bytes, last.flushed, anchor or NO_ANCHOR)

    @property
    def is_open(self) -> bool:
        """Returns whether a transaction is open: changes of it are stored, and its commit is not. Unfinished groups of
        chunks belong to none."""
        return self.anchor.position.commit_lsn > self.flushed

    def pieces(self, body: ChangeBody | None, id_prefix: str, most_bytes: int) -> Iterator[tuple[Outgoing, DerivedEnd]]:
        """Yields the messages that hold ``body``, one or several chunks, each with the end of the stream after it; None
        means a message without changes, which leaves an open transaction open."""
        anchor, first = self._reached(body)
        commits = not self.is_open if body is None else body.transactions[-1].commits
        flushed = self.flushed if body is None else self._flushed_with(body)
        end, data = self, EMPTY_BODY if body is None else body.body
        for chunk, piece in cut(data, most_bytes):
            headers = end._headers(chunk, piece, first, anchor, flushed, commits=commits)
            message_id = f"{id_prefix}{first}-{anchor.position}"
            if chunk != WHOLE:
                message_id += f"/{chunk.index}@{self.sequence + 1}"
            elif first > anchor.position:
                message_id += f"/@{self.sequence + 1}"
            lines = "".join(f"{name}:{value}\r\n" for name, value in headers.encode().items())
            behind = DerivedEnd(end.sequence + 1, headers.settled, headers.total_bytes, headers.flushed)
            end = replace(behind, anchor=anchor if chunk.is_last else end.anchor)
            yield Outgoing(b"", message_id.encode(), lines.encode(), piece, Ends.CHANGE if chunk.is_last else Ends.NOTHING), end

    def _headers(
        self, chunk: Chunk, piece: bytes, first: Position, anchor: Anchor, flushed: LSN, *, commits: bool
    ) -> MessageHeaders:
        return MessageHeaders(
            first=first,
            last=anchor.position,
            flushed=flushed if chunk.is_last else self.flushed,
            settled=self.sequence + 1 if chunk.is_last and commits else self.settled,
            total_bytes=self.total_bytes + counted_bytes(piece, chunk, None),
            chunk=chunk,
            anchor=anchor,
            after=self.anchor,
        )

    def _flushed_with(self, body: ChangeBody) -> LSN:
        """Returns the commit of the last transaction that is whole when ``body`` follows; another may be open after it."""
        committed = [share.commit_lsn for share in body.transactions if share.commits]
        return LSN(committed[-1]) if committed else self.flushed

    def _reached(self, body: ChangeBody | None) -> tuple[Anchor, Position]:
        """Returns the anchor of the last change when ``body`` follows, and the position of its first. A transaction
        that continues, or copied rows, count on in it."""
        here = self.anchor.position
        if body is None:
            return self.anchor, Position(here.commit_lsn, here.ordinal + 1)
        begun = body.transactions[0]
        goes_on = begun.commit_lsn == here.commit_lsn
        first = Position(LSN(begun.commit_lsn), here.ordinal + 1 if goes_on else 1)
        changed = [share for share in body.transactions if share.changes]
        if not changed:
            return self.anchor, first
        last = changed[-1]
        before = here.ordinal if last.commit_lsn == here.commit_lsn else 0
        return Anchor(Position(LSN(last.commit_lsn), before + last.changes), last.xid, last.committed_at), first


class DerivedGroup:
    """``source`` is the group that the worker reads, ``worker`` that group, a slash and the worker's name in it."""

    def __init__(self, names: GroupNames, source: StateBucket, bucket: StateBucket, worker: str) -> None:
        self._names = names
        self._source = source
        self._bucket = bucket
        self._publication = publication_of_worker(worker)
        self._transformation = Transformation()
        self._told = 0
        """Revision of the source's record of tables that was published last."""
        self.id_prefix = ""
        """Prefix of the id of every message in the stream."""

    async def check_owner(self) -> None:
        """Raises TerminalError when the group exists and another publisher owns it."""
        if not await self._bucket.exists():
            return
        found = await self._bucket.read(GROUP_KEY, GroupRecord)
        if found is None or found.value.publication != self._publication:
            raise TerminalError(
                f"group '{self._names.group}' exists, and this worker does not publish it",
                "give another nats-group, or drop that group",
            )

    async def begin(self, settings: StreamSettings, transformation: Transformation) -> None:
        """Makes the bucket and writes who publishes, after ``check_owner``."""
        raw = await self._source.read(GROUP_KEY, GroupRecord)
        if raw is None:
            fact = "the group's replicator has not recorded its source yet"
            raise TransientError(fact, "it is read again; check that it runs", Cause.SOURCE)
        await self._bucket.ensure(settings)
        await self._bucket.create(GROUP_KEY, self._record(raw.value))  # unless it exists
        self.id_prefix = f"{raw.value.system_id}/{self._names.slot}/"
        self._transformation, self._told = transformation, 0
        await self.tell_tables()

    def _record(self, raw: GroupRecord) -> GroupRecord:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        own = replace(raw, group=self._names.group, slot=self._names.slot, publication=self._publication)
        return replace(own, publication_oid=0, slot_lsn="", created_at=now)

    async def tell_tables(self) -> None:
        """Publishes the source's tables here, if they changed: tables may have joined since, or were not known there
        yet."""
        entry = await self._source.read(TABLES_KEY, PublishedTables)
        tables = None if entry is None or entry.revision == self._told else await load_tables(self._source)
        if entry is None or tables is None:
            return
        own = _distinct(own_table(each) for table in tables for each in self._transformation.destinations(table))
        await store_tables(self._bucket, own, entry.value.encoding)
        self._told = entry.revision


def _distinct(tables: Iterator[Table]) -> Sequence[Table]:
    return list({(table.schema, table.name): table for table in tables}.values())
