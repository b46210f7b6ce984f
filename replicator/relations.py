"""The tables of a replication stream as a message's body begins with them: a descriptor, Type frames and Relation frames."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from pgsluice.shared.wire.message import Descriptor, encode_body
from pgsluice.shared.wire.table import Table

MOST_HEAD_BYTES = 1024 * 1024
"""Bytes of kept beginnings: the next messages are often of the same tables, but with many tables hardly two are alike."""

_OID = struct.Struct(">I")


class Relations:
    """The newest Relation of each table, with what is known of the table, and the types. OIDs are four bytes, as in frames."""

    def __init__(self) -> None:
        self._frames: dict[bytes, bytes] = {}
        self._tables: dict[bytes, Table] = {}
        self._types: dict[bytes, bytes] = {}
        self._heads: dict[frozenset[bytes], bytes] = {}
        self._head_bytes = 0

    def __contains__(self, oid: bytes) -> bool:
        return oid in self._frames

    def frame(self, oid: int) -> bytes | None:
        """Returns the table's newest Relation frame."""
        return self._frames.get(_OID.pack(oid))

    def is_known(self, frame: bytes, table: Table) -> bool:
        """Returns whether the newest Relation is equal, and so are its table's facts."""
        oid = frame[1:5]
        return self._frames.get(oid) == frame and self._tables[oid] == table

    def note(self, frame: bytes, table: Table) -> None:
        """Notes a Relation frame."""
        self._frames[frame[1:5]], self._tables[frame[1:5]] = frame, table
        self._forget_heads()

    def note_type(self, frame: bytes) -> None:
        """Notes a Type frame."""
        self._types[frame[1:5]] = frame
        self._forget_heads()

    def head(self, used: Iterable[bytes]) -> bytes:
        """Returns the begin of a body whose changes are of these tables; ignores unknown ones."""
        oids = frozenset(oid for oid in used if oid in self._frames)
        if (head := self._heads.get(oids)) is None:
            head = self._encode(sorted(oids))
            if self._head_bytes + len(head) > MOST_HEAD_BYTES:
                self._forget_heads()
            self._heads[oids] = head
            self._head_bytes += len(head)
        return head

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._head_bytes = 0

    def _encode(self, oids: list[bytes]) -> bytes:
        tables = tuple(self._tables[oid] for oid in oids)
        type_oids = dict.fromkeys(_OID.pack(column.type_oid) for table in tables for column in table.columns)
        types = [self._types[oid] for oid in type_oids if oid in self._types]
        return encode_body(Descriptor(tables).encode(), types + [self._frames[oid] for oid in oids])
