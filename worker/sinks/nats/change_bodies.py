"""Changes, after rules and routes, as bodies of a change stream (``shared.wire.message``).

They are what the source would have sent if its tables were like that (``shared.rows.row_frames``). Definitions have no frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack
from typing import NamedTuple, assert_never

from pgsluice.shared.pgoutput import encode_message
from pgsluice.shared.pgoutput.messages import Begin, Commit, Truncate
from pgsluice.shared.rows.changes import (
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    TableChanges,
    Transaction,
    Truncation,
)
from pgsluice.shared.rows.copy_text import decode_rows
from pgsluice.shared.rows.row_frames import own_table, relation_frame, row_frames, row_images
from pgsluice.shared.wire.message import Descriptor, encode_body
from pgsluice.shared.wire.position import LSN, Anchor, Position
from pgsluice.shared.wire.table import Table

FIRST_LSN = LSN(1)
"""LSN of copied rows that come before any change."""


class TransactionShare(NamedTuple):
    """The part of one source transaction that a body holds: so many changes, and perhaps its commit."""

    commit_lsn: int
    xid: int
    committed_at: int
    changes: int
    commits: bool


@dataclass(frozen=True, slots=True)
class ChangeBody:
    """``source`` is the position of the last source change in it, None when it holds none."""

    transactions: tuple[TransactionShare, ...]
    body: bytes
    source: Position | None = None

    @property
    def changes(self) -> int:
        return sum(transaction.changes for transaction in self.transactions)


EMPTY_BODY = encode_body(Descriptor(()).encode(), ())


def body_of_message(message: MessageChanges, start: Position | None) -> ChangeBody | None:
    """Returns the body without changes at or before ``start``. None when nothing is left, nor a commit of earlier
    changes."""
    frames, tables = _frames(message)
    shares: list[TransactionShare] = []
    written: list[bytes] = []
    source: Position | None = None
    for transaction in message.transactions:
        first = _first_behind(start, transaction)
        if first is None:
            continue
        held = [frame for index in range(first, transaction.end_change) for frame in frames[index]]
        is_continued = not transaction.begins or first > transaction.first_change
        if not held and not (transaction.commits and is_continued):
            continue
        begin = Begin(LSN(transaction.commit_lsn), transaction.committed_at, transaction.xid)
        written += [encode_message(begin), *held]
        if transaction.commits:
            written.append(encode_message(_commit_of(begin)))
        about = (transaction.commit_lsn, transaction.xid, transaction.committed_at)
        shares.append(TransactionShare(*about, len(held), transaction.commits))
        if transaction.end_change > first:
            source = transaction.position(transaction.end_change - 1)
    return ChangeBody(tuple(shares), _body(list(tables.values()), written), source) if shares else None


def _frames(message: MessageChanges) -> tuple[list[list[bytes]], dict[int, Table]]:
    """Returns the frames of each change, by its index, and the tables that they are about, by OID."""
    frames: list[list[bytes]] = [[] for _ in range(message.change_count)]
    tables: dict[int, Table] = {}
    for part in message.parts:
        match part:
            case TableChanges():
                table = own_table(part.table)
                tables[table.oid] = table
                for index, frame in zip(part.change_indexes, row_frames(part, table.oid), strict=True):
                    frames[index].append(frame)
            case Truncation():
                own = [own_table(table) for table in part.tables]
                tables |= {table.oid: table for table in own}
                oids = tuple(table.oid for table in own)
                frames[part.change_index].append(encode_message(Truncate(part.cascade, part.restart_identity, oids)))
            case DefinitionChange():
                pass
            case unreachable:
                assert_never(unreachable)
    return frames, tables


def _first_behind(start: Position | None, transaction: Transaction) -> int | None:
    """Returns the index of its first change after ``start``, its end if only the commit is; None when nothing is."""
    first = transaction.first_change
    if start is None or transaction.commit_lsn > start.commit_lsn:
        return first
    if transaction.commit_lsn < start.commit_lsn:
        return None
    return min(transaction.end_change, first + max(0, start.ordinal - transaction.first_ordinal + 1))


def body_of_copy(copied: CopiedRows, after: Anchor, *, is_open: bool = False) -> ChangeBody:
    """Returns a body with a separate transaction, of inserts or of one TRUNCATE, that commits where the one of
    ``after`` did: copied rows have no place in commit order, so they follow the existing end. If that one ``is_open``
    they are part of it."""
    table = own_table(copied.table)
    lsn = max(after.position.commit_lsn, FIRST_LSN)
    begin = Begin(LSN(lsn), after.committed_at, after.xid)
    if copied.restarts:
        frames = [encode_message(Truncate(cascade=False, restart_identity=False, relation_oids=(table.oid,)))]
    else:
        columns = decode_rows(bytes(copied.data), len(table.columns))
        head = b"I" + pack(">I", table.oid)
        frames = [head + image for image in row_images(b"N", columns, copied.rows)]
    share = TransactionShare(lsn, after.xid, after.committed_at, len(frames), commits=not is_open)
    written = [encode_message(begin), *frames, *([] if is_open else [encode_message(_commit_of(begin))])]
    return ChangeBody((share,), _body([table], written))


def _body(tables: Sequence[Table], written: Sequence[bytes]) -> bytes:
    return encode_body(Descriptor(tuple(tables)).encode(), [*map(relation_frame, tables), *written])


def _commit_of(begin: Begin) -> Commit:
    return Commit(0, begin.final_lsn, begin.final_lsn, begin.committed_at)
