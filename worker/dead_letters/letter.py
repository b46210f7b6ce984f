"""Makes the body of a dead letter: one change that decodes without its message. Pure.

The change is the frame that the source sent. Begin and Relation are those of the message; the Commit is made, because the
transaction may go on in another message. A copied row was never a frame: it becomes the Insert that it would be.
"""

from __future__ import annotations

from struct import Struct

from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.messages import Begin, Truncate
from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.wire.message import Descriptor, encode_body, split_body
from pgsluice.shared.wire.table import Table, Value

_BEGIN = Struct(">cQqI")
_COMMIT = Struct(">cBQQq")
_OID = Struct(">I")
_U16 = Struct(">H")
_COLUMN_TYPE = Struct(">Ii")


class ChangeFrames:
    """The frames of one message body, by the number that ``change_indexes`` give its changes."""

    def __init__(self, body: bytes) -> None:
        descriptor, frames = split_body(body)
        self._tables = {_OID.pack(table.oid): table for table in Descriptor.decode(descriptor).tables}
        self._heads = {frame[1:5]: frame for frame in frames if frame[:1] == b"R"}
        self._types = [frame for frame in frames if frame[:1] == b"Y"]
        self._changes: list[tuple[bytes, bytes]] = []
        begin = b""
        for frame in frames:
            if frame[:1] == b"B":
                begin = frame
            elif frame[:1] in (b"I", b"U", b"D", b"T"):
                self._changes.append((begin, frame))

    def letter_body(self, change_index: int) -> bytes:
        begin, change = self._changes[change_index]
        oids = _relation_oids(change)
        descriptor = Descriptor(tuple(self._tables[oid] for oid in oids)).encode()
        head = [*self._types, *(self._heads[oid] for oid in oids)]
        return encode_body(descriptor, [*head, begin, change, _commit_of(begin)])


def copied_row_body(copied: CopiedRows, row: tuple[Value, ...]) -> bytes:
    """``row`` holds no UNCHANGED: COPY sends every value."""
    begin = _BEGIN.pack(b"B", 0, 0, 0)
    frames = [_relation(copied.table), begin, _insert(copied.table, row), _commit_of(begin)]
    return encode_body(Descriptor((copied.table,)).encode(), frames)


def _relation_oids(change: bytes) -> list[bytes]:
    if change[:1] != b"T":
        return [change[1:5]]
    truncate = decode_message(change)
    assert isinstance(truncate, Truncate)
    return [_OID.pack(oid) for oid in truncate.relation_oids]


def _commit_of(begin: bytes) -> bytes:
    decoded = decode_message(begin)
    assert isinstance(decoded, Begin)
    return _COMMIT.pack(b"C", 0, decoded.final_lsn, decoded.final_lsn, decoded.committed_at)


def _relation(table: Table) -> bytes:
    names = f"{table.schema}\0{table.name}\0".encode()
    parts = [b"R", _OID.pack(table.oid), names, table.replica_identity.value.encode(), _U16.pack(len(table.columns))]
    for column in table.columns:
        parts += [bytes([column.identity_key]), column.name.encode() + b"\0", _COLUMN_TYPE.pack(column.type_oid, column.typmod)]
    return b"".join(parts)


def _insert(table: Table, row: tuple[Value, ...]) -> bytes:
    parts = [b"I", _OID.pack(table.oid), b"N", _U16.pack(len(row))]
    for value in row:
        assert value is None or isinstance(value, bytes)
        parts += [b"n"] if value is None else [b"t", _OID.pack(len(value)), value]
    return b"".join(parts)
