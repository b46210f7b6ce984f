"""Decodes one pgoutput message, as a server sent it.

Manual: "Logical Replication Message Formats" (protocol-logicalrep-message-formats.html), protocol version 1. Integers are
big-endian; a string is UTF-8 (the client encoding that is pinned on every source connection) and ends with a zero byte.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.messages import (
    NO_OLD_ROW,
    OLD_KEY,
    OLD_ROW,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    PgoutputMessage,
    Relation,
    RelationColumn,
    Row,
    Truncate,
    Type,
    Update,
)
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Unchanged, Value

NEW_ROW = ord("N")

TEXT = ord("t")
NULL = ord("n")
_UNCHANGED_TOAST = ord("u")
_BINARY = ord("b")

_MESSAGE = Struct(">BQ")
_COLUMN_TYPE = Struct(">Ii")
_TRUNCATE = Struct(">IB")
_TRUNCATE_CASCADE = 1
_TRUNCATE_RESTART_IDENTITY = 2


def decode_message(payload: bytes) -> PgoutputMessage:
    """Returns the message that ``payload`` holds, all of it. Raises WireError, and nothing else, when the bytes end
    early, when bytes remain, when the kind is unknown, and when a value is in binary format (which is never asked for)."""
    if not payload:
        raise WireError("a pgoutput message is empty")
    kind = payload[0]
    if (fixed := _FIXED_LAYOUTS.get(kind)) is not None:
        layout, message_type = fixed
        if len(payload) != layout.size:
            raise _malformed(payload, f"is not {layout.size} bytes long")
        return message_type._make(layout.unpack(payload))
    decode = _DECODERS.get(kind)
    if decode is None:
        raise WireError(f"a pgoutput message is of unknown kind 0x{kind:02x}")
    fields = _Fields(payload)
    message = decode(fields)
    fields.end()
    return message


def begin_lsn(payload: bytes) -> LSN:
    """Returns ``final_lsn`` of what ``decode_message`` would make of a Begin, and nothing else of it. Raises WireError
    as it does."""
    try:
        return LSN(BEGIN.unpack(payload)[0])
    except StructError:
        raise _malformed(payload, f"is not {BEGIN.size} bytes long") from None


def begin_transaction(payload: bytes) -> tuple[int, int]:
    """Decodes a Begin: its transaction id and its commit time, in microseconds since 2000-01-01 UTC."""
    try:
        _, committed_at, xid = BEGIN.unpack(payload)
    except StructError:
        raise _malformed(payload, f"is not {BEGIN.size} bytes long") from None
    return xid, committed_at


def commit_lsns(payload: bytes) -> tuple[LSN, LSN]:
    """Decodes a Commit: ``commit_lsn`` and ``end_lsn``."""
    try:
        _, commit_lsn, end_lsn, _ = COMMIT.unpack(payload)
    except StructError:
        raise _malformed(payload, f"is not {COMMIT.size} bytes long") from None
    return commit_lsn, end_lsn


def value_without_bytes(kind: int) -> Unchanged | None:
    """Returns the column value that ``kind`` alone determines; raises WireError for other kinds."""
    if kind == NULL:
        return None
    if kind == _UNCHANGED_TOAST:
        return UNCHANGED
    if kind == _BINARY:
        raise WireError("a pgoutput column value is in binary format, which was not asked for")
    raise WireError(f"a pgoutput column value is of unknown kind 0x{kind:02x}")


class _Fields:
    """Takes the fields off a message, after its first byte, the kind; never reads past the end."""

    __slots__ = ("_payload", "_position")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 1

    def take(self, size: int) -> bytes:
        start = self._position
        self._position = start + size
        taken = self._payload[start : self._position]
        if len(taken) != size:
            raise _malformed(self._payload, "ends early")
        return taken

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def unpack(self, struct: Struct) -> tuple[int, ...]:
        return struct.unpack(self.take(struct.size))

    def string(self) -> str:
        end = self._payload.find(b"\0", self._position)
        if end < 0:
            raise _malformed(self._payload, "ends inside a string")
        try:
            text = self._payload[self._position : end].decode()
        except UnicodeDecodeError:
            raise _malformed(self._payload, "holds a name that is not UTF-8") from None
        self._position = end + 1
        return text

    def row(self) -> Row:
        """Reads TupleData."""
        return tuple([self._value() for _ in range(self.unsigned(2))])

    def _value(self) -> Value:
        kind = self.unsigned(1)
        return self.take(self.unsigned(4)) if kind == TEXT else value_without_bytes(kind)

    def old_kind(self) -> int:
        kind = self.unsigned(1)
        if kind not in (OLD_KEY, OLD_ROW):
            raise _malformed(self._payload, "has no old row where one must be")
        return kind

    def new_row(self) -> Row:
        if self.unsigned(1) != NEW_ROW:
            raise _malformed(self._payload, "has no new row where one must be")
        return self.row()

    def new_row_follows(self) -> bool:
        return self._payload[self._position : self._position + 1] == b"N"

    def replica_identity(self) -> ReplicaIdentity:
        try:
            return ReplicaIdentity(chr(self.unsigned(1)))
        except ValueError:
            raise _malformed(self._payload, "has an unknown replica identity") from None

    def end(self) -> None:
        if self._position != len(self._payload):
            raise _malformed(self._payload, "continues after its last field")


def _malformed(payload: bytes, how: str) -> WireError:
    return WireError(f"a pgoutput message of kind '{chr(payload[0])}' ({len(payload)} bytes) {how}")


def _decode_origin(fields: _Fields) -> Origin:
    return Origin(LSN(fields.unsigned(8)), fields.string())


def _decode_logical_message(fields: _Fields) -> LogicalMessage:
    flags, lsn = fields.unpack(_MESSAGE)
    return LogicalMessage(bool(flags & 1), LSN(lsn), fields.string(), fields.take(fields.unsigned(4)))


def _decode_relation(fields: _Fields) -> Relation:
    return Relation(
        oid=fields.unsigned(4),
        schema=fields.string() or "pg_catalog",
        name=fields.string(),
        replica_identity=fields.replica_identity(),
        columns=tuple([_decode_relation_column(fields) for _ in range(fields.unsigned(2))]),
    )


def _decode_relation_column(fields: _Fields) -> RelationColumn:
    identity_key = bool(fields.unsigned(1) & 1)
    name = fields.string()
    type_oid, typmod = fields.unpack(_COLUMN_TYPE)
    return RelationColumn(identity_key, name, type_oid, typmod)


def _decode_type(fields: _Fields) -> Type:
    return Type(fields.unsigned(4), fields.string() or "pg_catalog", fields.string())


def _decode_insert(fields: _Fields) -> Insert:
    return Insert(fields.unsigned(4), fields.new_row())


def _decode_update(fields: _Fields) -> Update:
    relation_oid = fields.unsigned(4)
    if fields.new_row_follows():
        return Update(relation_oid, NO_OLD_ROW, (), fields.new_row())
    return Update(relation_oid, fields.old_kind(), fields.row(), fields.new_row())


def _decode_delete(fields: _Fields) -> Delete:
    return Delete(fields.unsigned(4), fields.old_kind(), fields.row())


def _decode_truncate(fields: _Fields) -> Truncate:
    count, options = fields.unpack(_TRUNCATE)
    relation_oids = tuple([fields.unsigned(4) for _ in range(count)])
    return Truncate(bool(options & _TRUNCATE_CASCADE), bool(options & _TRUNCATE_RESTART_IDENTITY), relation_oids)


BEGIN, COMMIT = Struct(">xQqI"), Struct(">xBQQq")
"""The fields of ``messages.Begin`` and ``Commit``, after the kind: messages of one size, which are read at once,
because small transactions are made of them."""

_FIXED_LAYOUTS: dict[int, tuple[Struct, type[Begin | Commit]]] = {ord("B"): (BEGIN, Begin), ord("C"): (COMMIT, Commit)}

_DECODERS: dict[int, Callable[[_Fields], PgoutputMessage]] = {
    ord("O"): _decode_origin,
    ord("M"): _decode_logical_message,
    ord("R"): _decode_relation,
    ord("Y"): _decode_type,
    ord("I"): _decode_insert,
    ord("U"): _decode_update,
    ord("D"): _decode_delete,
    ord("T"): _decode_truncate,
}
