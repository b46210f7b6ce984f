"""pgoutput frames made by hand (manual: "Logical Replication Message Formats")."""

from __future__ import annotations

import struct

from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

OID = 16400


def begin(commit_lsn: int, xid: int = 1) -> bytes:
    return struct.pack(">cQqI", b"B", commit_lsn, 0, xid)


def commit(commit_lsn: int) -> bytes:
    return struct.pack(">cBQQq", b"C", 0, commit_lsn, end_lsn(commit_lsn), 0)


def begin_lsn(frame: bytes) -> int:
    (lsn,) = struct.unpack_from(">xQ", frame)
    return int(lsn)


def end_lsn(commit_lsn: int) -> int:
    """These tests' commit records are 8 bytes long."""
    return commit_lsn + 8


def insert(value: bytes, oid: int = OID) -> bytes:
    return struct.pack(">cIcHcI", b"I", oid, b"N", 1, b"t", len(value)) + value


def truncate(*oids: int) -> bytes:
    return struct.pack(f">cIB{len(oids)}I", b"T", len(oids), 0, *oids)


def origin(name: bytes) -> bytes:
    return struct.pack(">cQ", b"O", 7) + name + b"\0"


def definition(content: bytes = b"{}") -> bytes:
    return struct.pack(">cBQ", b"M", 1, 7) + b"pgsluice.ddl\0" + struct.pack(">I", len(content)) + content


def type_frame(oid: int, name: bytes) -> bytes:
    return struct.pack(">cI", b"Y", oid) + b"public\0" + name + b"\0"


def relation(oid: int = OID, name: bytes = b"t", column: bytes = b"v", type_oid: int = 25) -> bytes:
    return (
        struct.pack(">cI", b"R", oid)
        + b"public\0"
        + name
        + b"\0d"
        + struct.pack(">HB", 1, 0)
        + column
        + struct.pack(">xIi", type_oid, -1)
    )


def table(oid: int = OID, name: str = "t", column: str = "v", type_oid: int = 25, not_null: bool = False) -> Table:
    described = Column(column, type_oid, "text", -1, not_null, None, False, "", "")
    return Table(oid, "public", name, ReplicaIdentity.DEFAULT, (described,))


def xlog_data(frame: bytes, wal_start: int = 1 << 33) -> bytes:
    """The whole message that brings ``frame`` (manual: "Streaming Replication Protocol")."""
    return struct.pack(">cIcQQq", b"d", 29 + len(frame), b"w", wal_start, wal_start, 0) + frame


def keepalive(wal_end: int) -> bytes:
    return struct.pack(">cIcQqB", b"d", 22, b"k", wal_end, 0, 0)
