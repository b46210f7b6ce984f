"""Assembles stream messages from pgoutput frames: pure, no I/O.

An ``Assembler`` lives as long as one replication session. It takes frames in the order the server sends them and gives
back messages in commit order (``shared.wire.message`` describes their bodies). It cuts the open message

- at a Commit, when the message has reached COMMIT_CUT_BYTES;
- before a change, when the message has reached CUT_BYTES (so a message that continues a transaction begins with a change);
- before a Relation that differs from the one in use (so a message never holds two versions of a table);
- before a definition and after it (with the Commit, when that follows), so that it is alone in its message, and at the Commit
  of its transaction;
- when the caller reports that the socket is drained and no transaction is open.

A definition is a change like others and has an ordinal, and so has a forged message. The caller skips logical messages
of any other prefix, so an ordinal does not depend on the messages of other programs. Where logical messages are not
requested, definitions are no changes. A change that is left out (``followed_tables``) keeps its ordinal: LEFT_OUT
replaces it. A transaction of which all changes are left out, up to MOST_UNPLACED, makes no message.

A transaction without changes makes no message, but its end moves ``flushed``. A change at or before the resume position
was published by an earlier session: it is counted and skipped.

The server's data is also compared with what was published: when the slot lies before the last published transaction,
the server sends that one again, and it has to be the same transaction. Without this, a source that went back in its
history (a failover, a restored disk) would have its new transactions skipped, because they lie where others were
published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

from pgsluice.replicator.followed_tables import FollowedTables
from pgsluice.replicator.relations import Relations
from pgsluice.replicator.source.copy_data import CHANGE_HEAD, FRAME_OFFSET, FrameLengths
from pgsluice.shared.errors import START_AGAIN, HistoryError, TerminalError, WireError
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.decoder import BEGIN as BEGIN_FIELDS
from pgsluice.shared.pgoutput.decoder import COMMIT as COMMIT_FIELDS
from pgsluice.shared.pgoutput.decoder import begin_lsn, begin_transaction, commit_lsns
from pgsluice.shared.pgoutput.encoder import encode_message
from pgsluice.shared.pgoutput.messages import LogicalMessage, Truncate
from pgsluice.shared.wire.message import DDL_PREFIX, frame_length
from pgsluice.shared.wire.position import LSN, Anchor, Position, format_lsn
from pgsluice.shared.wire.table import Table

COMMIT_CUT_BYTES = 192 * 1024
CUT_BYTES = 256 * 1024
MOST_UNPLACED = 1000
"""The most changes that are left out at the begin of a transaction without a LEFT_OUT in a message. A further change of the
transaction places one for each of them."""

LEFT_OUT = encode_message(LogicalMessage(True, LSN(0), DDL_PREFIX, b""))
"""Replaces a change that is not published, and a forged definition."""

ROW_KINDS = frozenset(b"IUD")
BEGIN, COMMIT, LOGICAL_MESSAGE, ORIGIN, RELATION, TRUNCATE, TYPE = b"BCMORTY"

_OID = Struct(">I")
_ROW_HEAD_BYTES = 5
_COMMIT_LENGTH, _BEGIN_LENGTH = _OID.pack(COMMIT_FIELDS.size), _OID.pack(BEGIN_FIELDS.size)
_COMMIT_AND_BEGIN_BYTES = 2 * FRAME_OFFSET + COMMIT_FIELDS.size + BEGIN_FIELDS.size
_COMMIT_AND_BEGIN_SIZE = 2 * _OID.size + COMMIT_FIELDS.size + BEGIN_FIELDS.size  # in the message
_COMMIT_BEGIN_CHANGE = Struct(">Q22x BxQQ8x Q22x BQ12x Q22x5s")
"""Three messages, one after the other: head, kind, LSNs of a Commit; head, kind, LSN of a Begin; a ``CHANGE_HEAD``."""


@dataclass(frozen=True, slots=True)
class Message:
    """A body and the facts for its headers. ``settled``: no transaction is open at its end. ``changes`` counts I, U, D,
    T and definitions, where a definition is alone (``is_definition``), or forged. ``xid`` and ``committed_at`` belong
    to the transaction of ``last``; ``counts_definitions``: they are among its ordinals."""

    first: Position
    last: Position
    flushed: LSN
    settled: bool
    changes: int
    body: bytes = field(repr=False)
    xid: int = 0
    committed_at: int = 0
    is_definition: bool = False
    counts_definitions: bool = True

    @property
    def anchor(self) -> Anchor:
        return Anchor(self.last, self.xid, self.committed_at)


@dataclass(frozen=True, slots=True)
class Published:
    """The work of earlier sessions: published changes up to ``last`` (None: nothing), commits up to the end LSN
    ``flushed``.

    ``settled`` is False when the transaction of ``last`` has changes that are not published. ``anchor`` belongs to
    ``last``, None when the stream lacks it. ``is_due``: the slot lies before that transaction, so the server has to
    send it again before any later one. ``counts_definitions``: they are among the ordinals of that transaction, as they
    were not in earlier versions.
    """

    last: Position | None
    flushed: LSN
    settled: bool
    anchor: Anchor | None = None
    is_due: bool = False
    counts_definitions: bool = True


class Assembler:
    """``cut_bytes`` is for tests and for servers whose messages must be small. ``counts_definitions``: the server was asked for
    logical messages. ``followed`` may be altered at any time."""

    def __init__(
        self,
        published: Published,
        cut_bytes: int = CUT_BYTES,
        *,
        counts_definitions: bool = True,
        followed: FollowedTables | None = None,
    ) -> None:
        self._published = published
        self._followed = followed or FollowedTables()
        self._followed_version = self._followed.version
        self._is_asked_for_definitions = counts_definitions
        self._frame_lengths = FrameLengths()
        self._is_due = published.is_due
        self._cut_bytes = cut_bytes
        self._commit_cut_bytes = min(COMMIT_CUT_BYTES, cut_bytes)
        self._flushed = published.flushed
        self._relations = Relations()

        self._begin: bytes | None = None  # the open transaction's Begin
        self._last_begin = b""  # begin of the transaction committed last in the open message
        self._origin = b""
        self._commit_lsn = LSN(0)
        self._ordinal = 0  # of the newest change of the open transaction
        self._skip_through = 0  # ordinals of the open transaction that earlier sessions published
        self._is_continued = False  # an earlier message holds a part of the open transaction
        self._unplaced = 0  # changes at the begin of the open transaction that are left out and have no LEFT_OUT in a message
        self._defines = False  # the open transaction has definitions

        self._parts: list[bytes] = []  # of the open message: lengths and frames in turn
        self._row_heads: set[bytes] = set()  # kind and relation of the row changes in it
        self._lasting_heads: set[bytes] = set()  # the heads of tables of which every change is followed for now
        self._truncated: set[bytes] = set()
        self._is_definition = False
        self._size = 0
        self._changes = 0
        self._holds_open_transaction = False
        self._first = self._last_committed = Position(LSN(0), 0)

    @property
    def flushed(self) -> LSN:
        """End LSN of the newest commit received; what is before it is in messages given back or in the open message."""
        return self._flushed

    @property
    def xid(self) -> int:
        """Transaction id of the open transaction."""
        if self._begin is None:
            raise WireError("the server sent a relation outside a transaction")
        return begin_transaction(self._begin)[0]

    @property
    def committed_at(self) -> int:
        """Commit time of the transaction that began last, in microseconds since 2000-01-01 UTC; 0 outside of one."""
        return 0 if self._begin is None else begin_transaction(self._begin)[1]

    @property
    def next_position(self) -> Position:
        """Position of the next change, if it is of the transaction that began last."""
        return Position(self._commit_lsn, self._ordinal + 1)

    @property
    def in_transaction(self) -> bool:
        return self._begin is not None

    @property
    def is_empty(self) -> bool:
        """Everything received is in messages that were given back."""
        return not self._parts and self._begin is None

    def add(self, frame: bytes) -> Message | None:
        """Takes any frame but a Relation and a logical message. Raises WireError on one that cannot come in this place."""
        kind = frame[0]
        if kind in ROW_KINDS:
            head = frame[:_ROW_HEAD_BYTES]
            if not self._followed.takes(head[1:], self._commit_lsn):
                return self._leave_out()
            message = self._add_change(frame)
            if self._holds_open_transaction:
                self._row_heads.add(head)
                if self._followed.is_lasting(head[1:]):
                    self._lasting_heads.add(head)
            return message
        if kind == BEGIN:
            self._begin_transaction(frame)
        elif kind == COMMIT:
            return self._commit_transaction(frame)
        elif kind == TRUNCATE:
            return self._truncate(frame)
        elif kind == ORIGIN:
            self._origin = frame
        elif kind == TYPE:
            self._relations.note_type(frame)
        else:
            raise WireError(f"the server sent a message of kind {chr(kind)!r}, which was not asked for")
        return None

    def add_run(self, data: bytes, start: int, until: LSN | None = None) -> int:
        """Takes the messages in ``data`` (``copy_data``) from ``start`` on that are whole, as long as they continue the
        open transaction with row changes like those before, or end it and begin one, before ``until``, that has such a
        change; and as long as none cuts the open message. Returns where the first other one begins, which is for
        ``add``."""
        if self._followed_version != self._followed.version:
            self._followed_version = self._followed.version
            self._lasting_heads.clear()
        if not self._holds_open_transaction:
            return start
        lengths, row_heads, parts, unpack = self._frame_lengths, self._lasting_heads, self._parts, CHANGE_HEAD.unpack_from
        append, position = parts.append, start
        # What a message brings is shorter than itself, so no change that ends before this place finds the open message full.
        limit = min(len(data), start + self._cut_bytes - self._size)
        last = limit - CHANGE_HEAD.size
        while True:
            run, count = position, len(parts)
            while position <= last:
                message_head, row_head = unpack(data, position)
                length, frame_length = lengths[message_head]
                end = position + length
                if end > limit or row_head not in row_heads:
                    break
                append(frame_length)
                append(data[position + FRAME_OFFSET : end])
                position = end
            changes = (len(parts) - count) // 2
            self._ordinal += changes
            self._changes += changes
            self._size += position - run - changes * (FRAME_OFFSET - _OID.size)
            if not self._add_commit_and_begin(data, position, until):
                return position
            position += _COMMIT_AND_BEGIN_BYTES

    def _add_commit_and_begin(self, data: bytes, start: int, until: LSN | None) -> bool:
        """Takes the Commit and the Begin at ``start`` when a change like those before comes after them; else nothing. Small
        transactions are made of this. No message ends here, so what is noted of its last Commit is not."""
        if len(data) - start < _COMMIT_BEGIN_CHANGE.size:
            return False
        commit, commit_kind, commit_lsn, end_lsn, begin, begin_kind, next_lsn, change, row_head = (
            _COMMIT_BEGIN_CHANGE.unpack_from(data, start)
        )
        lengths, size = self._frame_lengths, self._size + _COMMIT_AND_BEGIN_SIZE
        if (
            row_head not in self._lasting_heads
            or lengths[commit][1] != _COMMIT_LENGTH
            or lengths[begin][1] != _BEGIN_LENGTH
            or not lengths[change][1]
            or commit_kind != COMMIT
            or begin_kind != BEGIN
            or commit_lsn != self._commit_lsn
            or next_lsn <= commit_lsn
            or (until is not None and next_lsn >= until)
            or size >= self._commit_cut_bytes
            or self._defines
        ):
            return False
        self._flushed = max(self._flushed, end_lsn)
        commit_start = start + FRAME_OFFSET
        begin_start = commit_start + COMMIT_FIELDS.size + FRAME_OFFSET
        self._begin = data[begin_start : begin_start + BEGIN_FIELDS.size]
        self._parts += (_COMMIT_LENGTH, data[commit_start : commit_start + COMMIT_FIELDS.size], _BEGIN_LENGTH, self._begin)
        self._size = size
        self._commit_lsn, self._ordinal, self._origin = next_lsn, 0, b""
        self._skip_through = 0
        return True

    def add_relation(self, frame: bytes, table: Table) -> Message | None:
        """Takes a Relation frame and the catalog's facts about that table."""
        if self._relations.is_known(frame, table):
            return None
        message = self._cut() if frame[1:5] in self._relations else None
        self._relations.note(frame, table)
        return message

    def complete(self, table: Table) -> Message | None:
        """Takes a table that the catalog now describes in full, between two transactions. Its newest Relation frame stays."""
        frame = self._relations.frame(table.oid)
        return None if frame is None else self.add_relation(frame, table)

    def add_definition(self, frame: bytes, *, supersedes: bool = False) -> Message | None:
        """Takes a definition, in the open transaction, ready to be published, without reading it. ``supersedes``:
        LEFT_OUT replaces the definition right before it, and both are in one message, unless the earlier one is
        published already."""
        if not self._counts_definitions:
            return None
        if self._ordinal < self._skip_through:
            self._ordinal += 1
            return None
        if supersedes and self._is_definition:
            self._size += len(LEFT_OUT) - len(self._parts[-1])
            self._parts[-2:] = (frame_length(LEFT_OUT), LEFT_OUT)
            self._is_definition = False
            message = self._add_change(frame)
        else:
            self._place()
            message = self._cut()
            self._add_change(frame)
        self._is_definition = self._defines = True
        return message

    def add_forged(self) -> Message | None:
        """Takes a forged message, of which there may be very many. LEFT_OUT replaces it, and does not cut the message."""
        return self._add_change(LEFT_OUT) if self._counts_definitions else None

    @property
    def _counts_definitions(self) -> bool:
        """Returns whether definitions count among the ordinals of the transaction that began last. A transaction that
        an earlier session began to publish continues as it began."""
        last = self._published.last
        if last is not None and self._commit_lsn <= last.commit_lsn:
            return self._published.counts_definitions
        return self._is_asked_for_definitions

    def check_reached(self, lsn: LSN) -> None:
        """The server has sent everything before ``lsn``. Raises HistoryError when what was published last was not among it."""
        last = self._published.last
        if self._is_due and self._begin is None and last is not None and lsn > last.commit_lsn:
            raise self._foreign_history(f"has WAL up to {format_lsn(lsn)} without it")

    def drained(self) -> Message | None:
        """Returns the open message, when nothing more can be read and no transaction is open."""
        return self._cut() if self._begin is None else None

    def _begin_transaction(self, frame: bytes) -> None:
        commit_lsn = begin_lsn(frame)
        if self._begin is not None:
            raise WireError("the server began a transaction inside another one")
        self._begin = frame
        self._origin = b""
        self._commit_lsn = commit_lsn
        self._ordinal = self._unplaced = 0
        self._defines = False
        if self._is_due:
            self._compare_with_published(commit_lsn, frame)
        last = self._published.last
        if last is None or commit_lsn > last.commit_lsn:
            self._skip_through, self._is_continued = 0, False
        elif commit_lsn == last.commit_lsn and not self._published.settled:
            self._skip_through, self._is_continued = last.ordinal, True
        else:
            self._skip_through, self._is_continued = 1 << 62, False

    def _compare_with_published(self, commit_lsn: LSN, begin: bytes) -> None:
        last, anchor = self._published.last, self._published.anchor
        if last is None or commit_lsn < last.commit_lsn:
            return
        if commit_lsn > last.commit_lsn:
            raise self._foreign_history(f"continues with the transaction that commits at {format_lsn(commit_lsn)}")
        if anchor is not None and begin_transaction(begin) != (anchor.xid, anchor.committed_at):
            raise self._foreign_history("has another transaction there")
        self._is_due = False

    def _foreign_history(self, found: str) -> HistoryError:
        last = self._published.last
        assert last is not None
        return HistoryError(
            f"the stream holds the transaction that committed at {format_lsn(last.commit_lsn)}, the source {found}: its history "
            "went back (a failover, a restored backup or disk), so the source lacks transactions that are published",
            START_AGAIN,
        )

    def _add_change(self, frame: bytes) -> Message | None:
        if self._ordinal < self._skip_through:
            self._ordinal += 1
            return None
        message = self._cut() if self._size >= self._cut_bytes or self._is_definition else None
        self._place()
        self._ordinal += 1
        if not self._holds_open_transaction:
            self._repeat_begin(self._ordinal)
        size = len(frame)
        parts = self._parts
        parts.append(_OID.pack(size))
        parts.append(frame)
        self._size += size + 4
        self._changes += 1
        return message

    def _truncate(self, frame: bytes) -> Message | None:
        truncate = decode_message(frame)
        assert isinstance(truncate, Truncate)
        oids = tuple(oid for oid in truncate.relation_oids if self._followed.takes(_OID.pack(oid), self._commit_lsn))
        if not oids:
            return self._leave_out()
        message = self._add_change(
            frame if oids == truncate.relation_oids else encode_message(truncate._replace(relation_oids=oids))
        )
        self._truncated.update(map(_OID.pack, oids))
        return message

    def _leave_out(self) -> Message | None:
        """Counts a change that is not published."""
        if self._begin is None:
            raise WireError("the server sent a change outside a transaction")
        is_published = self._ordinal < self._skip_through
        if is_published or self._holds_open_transaction or self._is_continued or self._unplaced == MOST_UNPLACED:
            return self._add_change(LEFT_OUT)
        self._ordinal += 1
        self._unplaced += 1
        return None

    def _place(self) -> None:
        """Puts a LEFT_OUT into the open message for each change that was left out at the begin of the transaction."""
        if not self._unplaced:
            return
        self._repeat_begin(self._ordinal - self._unplaced + 1)
        for _ in range(self._unplaced):
            self._append(LEFT_OUT)
        self._changes += self._unplaced
        self._unplaced = 0

    def _repeat_begin(self, ordinal: int) -> None:
        """Begins the message's part of a transaction with Begin, and Origin when the transaction has one. The change with
        ``ordinal`` comes next."""
        if self._begin is None:
            raise WireError("the server sent a change outside a transaction")
        if not self._parts:
            self._first = Position(self._commit_lsn, ordinal)
        for frame in (self._begin, self._origin) if self._origin else (self._begin,):
            self._append(frame)
        self._holds_open_transaction = True

    def _append(self, frame: bytes) -> None:
        self._parts += (frame_length(frame), frame)
        self._size += len(frame) + 4

    def _commit_transaction(self, frame: bytes) -> Message | None:
        commit_lsn, end_lsn = commit_lsns(frame)
        if self._begin is None or commit_lsn != self._commit_lsn:
            raise WireError("the server committed a transaction that it did not begin")
        if self._is_continued and not self._holds_open_transaction:
            raise TerminalError(
                f"the transaction at {self._published.last} ends at a position where the stream continues it",
                "the source is not the one that was published from; run 'pgsluice drop' and start again",
            )
        begin, self._begin = self._begin, None
        self._flushed = max(self._flushed, end_lsn)
        if not self._holds_open_transaction:
            return None
        self._append(frame)
        self._last_begin = begin
        self._holds_open_transaction = False
        self._last_committed = Position(self._commit_lsn, self._ordinal)
        return self._cut() if self._size >= self._commit_cut_bytes or self._defines else None

    def _cut(self) -> Message | None:
        if not self._parts:
            return None
        settled = not self._holds_open_transaction
        xid, committed_at = begin_transaction(self._last_begin if settled or self._begin is None else self._begin)
        message = Message(
            first=self._first,
            last=self._last_committed if settled else Position(self._commit_lsn, self._ordinal),
            flushed=self._flushed,
            settled=settled,
            changes=self._changes,
            body=self._body(),
            xid=xid,
            committed_at=committed_at,
            is_definition=self._is_definition,
            counts_definitions=self._counts_definitions,
        )
        self._is_continued = not settled
        self._holds_open_transaction = False
        self._parts = []
        self._row_heads = set()
        self._lasting_heads = set()
        self._truncated = set()
        self._is_definition = False
        self._size = self._changes = 0
        return message

    def _body(self) -> bytes:
        used = {head[1:] for head in self._row_heads} | self._truncated
        return b"".join([self._relations.head(used), *self._parts])
