"""Encodes decoded rows as frames of pgoutput again: as the source would have sent them if its tables were like that.

A table that a route made has a separate OID, made of the source's and its name, because a route may make several tables
of one. It has no other origin: to a reader of the frames it is a table like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from struct import pack
from zlib import crc32

from pgsluice.shared.pgoutput import encode_message
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY, Relation, RelationColumn
from pgsluice.shared.rows.changes import DELETE, UPDATE, TableChanges
from pgsluice.shared.wire.table import Table, Unchanged, Value


@lru_cache(maxsize=1024)
def own_table(table: Table) -> Table:
    """Returns the table as readers of the frames know it."""
    if table.origin is None:
        return table
    oid = crc32(f"{table.oid} {table.schema}.{table.name}".encode()) or 1
    return replace(table, oid=oid, origin=None)


@lru_cache(maxsize=1024)
def relation_frame(table: Table) -> bytes:
    columns = tuple(RelationColumn(column.identity_key, column.name, column.type_oid, column.typmod) for column in table.columns)
    return encode_message(Relation(table.oid, table.schema, table.name, table.replica_identity, columns))


def row_frames(changes: TableChanges, oid: int) -> list[bytes]:
    """Returns the frame of each row, in order."""
    count = len(changes)
    news = row_images(b"N", changes.new, count)
    head = pack(">I", oid)
    if changes.old is None or changes.old_kinds is None:
        return [
            b"%c%b%b" % (operation, head, new) if operation != DELETE else b"D%bK%b" % (head, new[1:])
            for operation, new in zip(changes.operations, news, strict=True)
        ]
    olds = row_images(b"O", changes.old, count)
    frames = []
    for operation, kind, old, new in zip(changes.operations, changes.old_kinds, olds, news, strict=True):
        if operation == DELETE:
            frames.append(b"D%b%c%b" % (head, OLD_KEY if kind == NO_OLD_ROW else kind, old[1:]))
        elif operation == UPDATE and kind != NO_OLD_ROW:
            frames.append(b"U%b%c%b%b" % (head, kind, old[1:], new))
        else:
            frames.append(b"%c%b%b" % (operation, head, new))
    return frames


def row_images(kind: bytes, columns: Sequence[Sequence[Value]], count: int) -> list[bytes]:
    head = kind + pack(">H", len(columns))
    if not len(columns):
        return [head] * count
    encoded = [[_value(value) for value in column] for column in columns]
    return [head + b"".join(values) for values in zip(*encoded, strict=True)]


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Unchanged):
        return b"u"
    return b"t%b%b" % (len(value).to_bytes(4, "big"), value)
