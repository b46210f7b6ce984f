"""Reads a whole change stream and looks for whatever the replicator must never do.

Every position exactly once, in order and without a gap, across messages, chunks and sessions; headers that say what the body
holds; messages that decode alone; an open transaction that is continued before another begins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    PgoutputMessage,
    Relation,
    Truncate,
    Type,
    Update,
)
from pgsluice.shared.wire.message import DDL_PREFIX, ID_HEADER, Descriptor, MessageHeaders, split_body
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Position, format_lsn

FETCH_MESSAGES = 200
FETCH_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Audit:
    """``problems`` are sentences; ``compressed`` counts messages whose body is; ``rows`` counts changes by table and kind
    ("public.t insert"), truncates by table."""

    problems: list[str] = field(default_factory=list)
    messages: int = 0
    chunks: int = 0
    compressed: int = 0
    abandoned_chunks: int = 0
    changes: int = 0
    definitions: int = 0
    transactions: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    last: Position | None = None
    is_settled: bool = True
    flushed: int = 0


async def audit_stream(nats: NatsSettings, group: str) -> Audit:
    """The whole change stream of ``group``, from its first message on."""
    async with connected(nats, "stream audit") as client:
        stream = ChangeStream(client, GroupNames(group))
        state = await stream.state()
        auditor = _Auditor(settled=state.first_sequence - 1 if state is not None else 0)
        if state is not None:
            sequence = state.first_sequence
            while sequence <= state.last_sequence:
                stored = await stream.fetch(sequence, FETCH_MESSAGES, FETCH_BYTES)
                if not stored:
                    auditor.report(sequence, "is missing")
                    break
                for message in stored:
                    auditor.take(sequence, message)
                    sequence = message.sequence + 1
        return auditor.audit


class _Auditor:
    """Keeps what the messages so far say about the next one."""

    def __init__(self, settled: int) -> None:
        self.audit = Audit()
        self._open: Begin | None = None  # the transaction that was begun and not committed
        self._ordinal = 0
        self._last_commit = 0
        self._settled = settled
        self._ddl = 0
        self._flushed: int | None = None
        self._total_bytes: int | None = None
        self._pending: list[StoredMessage] = []
        self._ids: set[str] = set()

    def report(self, sequence: int, what: str) -> None:
        self.audit.problems.append(f"sequence {sequence}: {what}")

    def take(self, expected_sequence: int, message: StoredMessage) -> None:
        headers = MessageHeaders.decode(message.headers)
        if message.sequence != expected_sequence:
            self.report(expected_sequence, f"is missing, {message.sequence} follows")
        if message.headers[ID_HEADER] in self._ids:
            self.report(message.sequence, "has the id of an earlier message")
        self._ids.add(message.headers[ID_HEADER])
        if self._total_bytes is not None and headers.bytes_before(message.data) != self._total_bytes:
            self.report(message.sequence, "has a wrong running total of bytes")
        self._total_bytes = headers.total_bytes

        if headers.chunk.index == 1:
            self.audit.abandoned_chunks += len(self._pending)
            self._pending = []
        elif len(self._pending) != headers.chunk.index - 1:
            self.report(message.sequence, f"is chunk {headers.chunk.index} behind {len(self._pending)} chunks")
        self._pending.append(message)
        if headers.chunk.is_last:
            self.audit.messages += 1
            self.audit.chunks += headers.chunk.count if headers.chunk.count > 1 else 0
            self.audit.compressed += headers.size is not None
            self._take_body(message.sequence, headers, headers.body([piece.data for piece in self._pending]))
            self._pending = []
        elif (headers.settled, headers.ddl) != (self._settled, self._ddl) or self._flushed not in (None, headers.flushed):
            self.report(message.sequence, "is not a last chunk, but claims progress")

    def _take_body(self, sequence: int, headers: MessageHeaders, body: bytes) -> None:
        descriptor, frames = split_body(body)
        tables = {table.oid: table.qualified_name for table in Descriptor.decode(descriptor).tables}
        first: Position | None = None
        began = False
        relations: set[int] = set()
        for frame in frames:
            message = decode_message(frame)
            match message:
                case Relation():
                    if message.oid in relations:
                        self.report(sequence, f"holds two versions of relation {message.oid}")
                    relations.add(message.oid)
                case Begin():
                    began = True
                    self._begin(sequence, message)
                case Commit():
                    self._commit(sequence, message)
                case LogicalMessage():
                    position = self._definition(sequence, message, began, len(frames))
                    first = first or position
                case Insert() | Update() | Delete() | Truncate():
                    position = self._change(sequence, message, tables, relations, began)
                    first = first or position
                case Type() | Origin():
                    pass
                case _:
                    self.report(sequence, f"holds a {type(message).__name__}")
        self._compare_headers(sequence, headers, first)

    def _begin(self, sequence: int, begin: Begin) -> None:
        if self._open is not None:
            if begin != self._open:
                self.report(sequence, f"begins {format_lsn(begin.final_lsn)} inside {format_lsn(self._open.final_lsn)}")
            return
        if begin.final_lsn <= self._last_commit:
            self.report(sequence, f"begins {format_lsn(begin.final_lsn)} again or too late")
        self._open, self._ordinal = begin, 0

    def _commit(self, sequence: int, commit: Commit) -> None:
        if self._open is None or commit.commit_lsn != self._open.final_lsn or self._ordinal == 0:
            self.report(sequence, f"commits {format_lsn(commit.commit_lsn)}, which is not the open transaction")
        self.audit.transactions += 1
        self._last_commit = commit.commit_lsn
        self.audit.flushed = commit.end_lsn
        self._open = None

    def _change(
        self, sequence: int, message: PgoutputMessage, tables: dict[int, str], relations: set[int], began: bool
    ) -> Position | None:
        if self._open is None or not began:
            self.report(sequence, "holds a change outside a transaction")
            return None
        self._ordinal += 1
        self.audit.changes += 1
        oids = message.relation_oids if isinstance(message, Truncate) else (message.relation_oid,)  # type: ignore[union-attr]
        for oid in oids:
            if oid not in tables or oid not in relations:
                self.report(sequence, f"does not describe relation {oid}")
            self.audit.rows[f"{tables.get(oid)} {type(message).__name__.lower()}"] += 1
        self.audit.last = Position(self._open.final_lsn, self._ordinal)
        return self.audit.last

    def _definition(self, sequence: int, message: LogicalMessage, began: bool, frames: int) -> Position | None:
        """Alone with the Begin, the Origin, and a Commit that follows; one that was forged, anywhere."""
        if self._open is None or not began or message.prefix != DDL_PREFIX or (message.content and frames > 4):
            self.report(sequence, "holds a logical message where no definition can be")
            return None
        self._ordinal += 1
        self.audit.changes += 1
        if message.content:
            self._ddl = sequence
            self.audit.definitions += 1
        self.audit.last = Position(self._open.final_lsn, self._ordinal)
        return self.audit.last

    def _compare_headers(self, sequence: int, headers: MessageHeaders, first: Position | None) -> None:
        if (headers.first, headers.last) != (first, self.audit.last):
            self.report(sequence, f"holds {first} to {self.audit.last}, says {headers.first} to {headers.last}")
        at_most = headers.flushed if self._open is None else self._open.final_lsn
        if not max(self._flushed or 0, self.audit.flushed) <= headers.flushed <= at_most:
            self.report(sequence, f"says flushed {format_lsn(headers.flushed)}, is {format_lsn(self.audit.flushed)}")
        self._flushed = headers.flushed
        self.audit.is_settled = self._open is None
        self._settled = sequence if self.audit.is_settled else self._settled
        if headers.settled != self._settled:
            self.report(sequence, f"says settled {headers.settled}, is {self._settled}")
        if headers.counts_definitions and headers.ddl != self._ddl:
            self.report(sequence, f"says that message {headers.ddl} defines, it is {self._ddl}")
