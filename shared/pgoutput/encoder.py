"""Encodes one pgoutput message, as a server would send it: the inverse of ``decoder``.

For dead letters, which hold changes that no server sent in this form, and for tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack
from typing import assert_never

from pgsluice.shared.pgoutput.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    PgoutputMessage,
    Relation,
    Row,
    Truncate,
    Type,
    Update,
)
from pgsluice.shared.wire.table import Unchanged


def encode_message(message: PgoutputMessage) -> bytes:
    match message:
        case Begin(final_lsn, committed_at, xid):
            return b"B" + pack(">QqI", final_lsn, committed_at, xid)
        case Commit(flags, commit_lsn, end_lsn, committed_at):
            return b"C" + pack(">BQQq", flags, commit_lsn, end_lsn, committed_at)
        case Origin(commit_lsn, name):
            return b"O" + pack(">Q", commit_lsn) + _string(name)
        case LogicalMessage(transactional, lsn, prefix, content):
            return b"M" + pack(">BQ", transactional, lsn) + _string(prefix) + pack(">I", len(content)) + content
        case Relation():
            return _encode_relation(message)
        case Type(oid, schema, name):
            return b"Y" + pack(">I", oid) + _schema(schema) + _string(name)
        case Insert(relation_oid, new):
            return b"I" + pack(">I", relation_oid) + _image(ord("N"), new)
        case Update(relation_oid, old_kind, old, new):
            return b"U" + pack(">I", relation_oid) + (_image(old_kind, old) if old_kind else b"") + _image(ord("N"), new)
        case Delete(relation_oid, old_kind, old):
            return b"D" + pack(">I", relation_oid) + _image(old_kind, old)
        case Truncate(cascade, restart_identity, relation_oids):
            options = cascade | restart_identity << 1
            return b"T" + pack(f">IB{len(relation_oids)}I", len(relation_oids), options, *relation_oids)
        case unreachable:
            assert_never(unreachable)


def encode_messages(messages: Iterable[PgoutputMessage]) -> list[bytes]:
    return [encode_message(message) for message in messages]


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _schema(name: str) -> bytes:
    return _string("" if name == "pg_catalog" else name)


def _encode_relation(relation: Relation) -> bytes:
    columns = b"".join(
        bytes([column.identity_key]) + _string(column.name) + pack(">Ii", column.type_oid, column.typmod)
        for column in relation.columns
    )
    names = _schema(relation.schema) + _string(relation.name)
    return (
        b"R" + pack(">I", relation.oid) + names + relation.replica_identity.encode() + pack(">H", len(relation.columns)) + columns
    )


def _image(kind: int, row: Row) -> bytes:
    values = []
    for value in row:
        if value is None:
            values.append(b"n")
        elif isinstance(value, Unchanged):
            values.append(b"u")
        else:
            values.append(b"t" + pack(">I", len(value)) + value)
    return pack(">BH", kind, len(row)) + b"".join(values)
