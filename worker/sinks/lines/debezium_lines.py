"""Changes as the values of Debezium's PostgreSQL connector, without schemas (``schemas.enable=false``), one on each line.

    {"before": null, "after": {"id": 7, "total": "12.50"},
     "source": {"version": "0.1.0", "connector": "postgresql", "name": "orders", "ts_ms": 1769850900123, "snapshot": "false",
                "db": "shop", "sequence": "[\\"97628985416\\",\\"3\\"]", "ts_us": 1769850900123456, "ts_ns": 1769850900123456000,
                "schema": "public", "table": "orders", "txId": 731, "lsn": 97628985416, "xmin": null},
     "transaction": null, "op": "c", "ts_ms": 1769850900123, "ts_us": 1769850900123456, "ts_ns": 1769850900123456000}

``op`` is ``c``, ``u``, ``d``, ``t`` (TRUNCATE, one for each table), or ``r`` for a copied row, whose ``snapshot`` is
``"true"``. As Debezium does it, an update that changes the key is a ``d`` with the old row and a ``c`` with the new
one, two lines; a large value that the server did not send is ``__debezium_unavailable_value``; ``before`` has as much
of the old row as the replica identity sends. A table that is copied again begins with a ``t``. Definitions have no
line.

What differs, so that the same change is the same text whenever it is written: all times are the commit's (null at the
top of a copied row, 0 in its ``source``), not those of processing. ``lsn`` is the commit record's. ``sequence`` holds
it and the change's number in its transaction: together they sort all changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, assert_never

import orjson

from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    TableChanges,
    Truncation,
)
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.sinks.lines.debezium_values import (
    BYTEA,
    KINDS,
    MILLISECOND_PRECISIONS,
    MILLISECONDS,
    UNAVAILABLE,
    UNAVAILABLE_BYTES,
)
from pgsluice.worker.sinks.lines.json_lines import as_changes
from pgsluice.worker.sinks.lines.json_rows import Row, Slot, lines_of_slots, new_rows, object_slots, old_rows, whole_columns

_UNIX_EPOCH_US = 946_684_800_000_000  # of POSTGRES_EPOCH
_NUMBER = "<number>"
"""Placeholder in the common text of a whole transaction."""
_OPERATIONS = {INSERT: b"c", UPDATE: b"u", DELETE: b"d"}


@dataclass(frozen=True, slots=True)
class DebeziumSource:
    """The server in ``source``: ``name`` is Debezium's ``topic.prefix``."""

    version: str
    name: str
    database: str


NO_SOURCE = DebeziumSource("", "", "")


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The facts about a change in its line, as JSON: before and after the table, and after the operation."""

    before: bytes
    after: bytes
    end: bytes


def encode_lines(message: MessageChanges, source: DebeziumSource) -> list[bytes]:
    """Like ``json_lines.encode_lines``."""
    stamps = _stamps(message, source)
    lines = [b""] * message.change_count
    for part in message.parts:
        match part:
            case TableChanges():
                changes = replace(part, table=with_milliseconds(part.table))
                for index, line in zip(part.change_indexes, _table_lines(changes, stamps, source), strict=True):
                    lines[index] += line
            case Truncation():
                stamp = stamps[part.change_index]
                lines[part.change_index] += b"".join(_line(None, None, table, stamp, b"t", source) for table in part.tables)
            case DefinitionChange():
                pass
            case unreachable:
                assert_never(unreachable)
    return [line for line in lines if line]


def encode_copied(copied: CopiedRows, source: DebeziumSource) -> list[bytes]:
    """Like ``json_lines.encode_copied``."""
    stamp = _copied_stamp(copied.snapshot, source)
    if copied.restarts:
        return [_line(None, None, copied.table, stamp, b"t", source)]
    table = with_milliseconds(copied.table)
    columns = whole_columns(table, as_changes(copied).new, KINDS)
    assert columns is not None, "a copied row has every value"
    head, place = _head(source), _place(table)
    slots: list[Slot] = [
        b'{"before":null,"after":',
        *object_slots(table, columns, range(len(columns))),
        b",%b%b%b%br%b" % (head, stamp.before, place, stamp.after, stamp.end),
    ]
    return lines_of_slots(slots, copied.rows)


def _stamps(message: MessageChanges, source: DebeziumSource) -> list[_Stamp]:
    stamps: list[_Stamp] = []
    for transaction in message.transactions:
        first, end, ordinal = transaction.first_change, transaction.end_change, transaction.first_ordinal
        at = transaction.committed_at + _UNIX_EPOCH_US
        like = _stamp(source, "false", at, transaction.xid, transaction.commit_lsn, _NUMBER)
        head, tail = like.before.split(_NUMBER.encode())
        numbers = range(ordinal, ordinal + end - first)
        stamps += [_Stamp(b"%b%d%b" % (head, number, tail), like.after, like.end) for number in numbers]
    return stamps


def _stamp(source: DebeziumSource, snapshot: str, at: int | None, xid: int | None, lsn: int | None, number: str | None) -> _Stamp:
    times = b"%d,%d,%d" % ((at or 0) // 1000, at or 0, (at or 0) * 1000)
    ms, us, ns = times.split(b",")
    sequence = orjson.dumps(orjson.dumps([None if lsn is None else str(lsn), number]).decode())
    return _Stamp(
        b'"ts_ms":%b,"snapshot":"%b","db":%b,"sequence":%b,"ts_us":%b,"ts_ns":%b,'
        % (ms, snapshot.encode(), orjson.dumps(source.database), sequence, us, ns),
        b'"txId":%b,"lsn":%b,"xmin":null},"transaction":null,"op":"' % (orjson.dumps(xid), orjson.dumps(lsn)),
        b'","ts_ms":null,"ts_us":null,"ts_ns":null}\n' if at is None else b'","ts_ms":%b,"ts_us":%b,"ts_ns":%b}\n' % (ms, us, ns),
    )


def _copied_stamp(snapshot: str, source: DebeziumSource) -> _Stamp:
    """A snapshot's id begins with its LSN (``replicator.snapshot.export``)."""
    try:
        lsn: int | None = LSN(int(snapshot.partition("-")[0], 16))
    except ValueError:
        lsn = None
    return _stamp(source, "true", None, None, lsn, None)


@lru_cache(maxsize=64)
def _head(source: DebeziumSource) -> bytes:
    said = {"version": source.version, "connector": "postgresql", "name": source.name}
    return b'"source":' + orjson.dumps(said)[:-1] + b","


@lru_cache(maxsize=1024)
def _place(table: Table) -> bytes:
    return orjson.dumps({"schema": table.schema, "table": table.name})[1:-1] + b","


@lru_cache(maxsize=1024)
def with_milliseconds(table: Table) -> Table:
    """Returns the table with other type OIDs for columns with a precision of milliseconds: values are made by type OID."""
    return replace(table, columns=tuple(map(_coarse, table.columns)))


def _coarse(column: Column) -> Column:
    if column.type_oid in MILLISECONDS and column.typmod in MILLISECOND_PRECISIONS:
        return replace(column, type_oid=MILLISECONDS[column.type_oid])
    return column


def _table_lines(changes: TableChanges, stamps: Sequence[_Stamp], source: DebeziumSource) -> Iterator[bytes]:
    table = changes.table
    whole = whole_columns(table, changes.new, KINDS) if changes.old is None else None
    if whole is None:
        return _lines_one_by_one(changes, stamps, source)
    chosen = [stamps[index] for index in changes.change_indexes]
    slots: list[Slot] = [
        b'{"before":null,"after":',
        *object_slots(table, whole, range(len(whole))),
        b"," + _head(source),
        [stamp.before for stamp in chosen],
        _place(table),
        [stamp.after for stamp in chosen],
        [_OPERATIONS[operation] for operation in changes.operations],
        [stamp.end for stamp in chosen],
    ]
    return iter(lines_of_slots(slots, len(changes)))


def _lines_one_by_one(changes: TableChanges, stamps: Sequence[_Stamp], source: DebeziumSource) -> Iterator[bytes]:
    table = changes.table
    befores = old_rows(changes, KINDS)
    afters, unchanged = new_rows(changes, befores, KINDS)
    for row, (index, operation) in enumerate(zip(changes.change_indexes, changes.operations, strict=True)):
        before, after, stamp = befores[row], afters[row], stamps[index]
        if row in unchanged:
            after = _with_placeholders(table, after)
        if operation == UPDATE and _changes_key(table, before, after):
            yield _line(before, None, table, stamp, b"d", source) + _line(None, after, table, stamp, b"c", source)
        else:
            yield _line(before, after, table, stamp, _OPERATIONS[operation], source)


def _with_placeholders(table: Table, after: Row | None) -> Row:
    """Returns all columns in their order."""
    row: Row = {}
    for column in table.columns:
        absent: Any = UNAVAILABLE_BYTES if column.type_oid == BYTEA else UNAVAILABLE
        row[column.name] = (after or {}).get(column.name, absent)
    return row


def _changes_key(table: Table, before: Row | None, after: Row | None) -> bool:
    if before is None or after is None:
        return False
    names = [table.columns[index].name for index in table.key]
    return any(orjson.dumps(before.get(name)) != orjson.dumps(after.get(name)) for name in names)


def _line(before: Row | None, after: Row | None, table: Table, stamp: _Stamp, operation: bytes, source: DebeziumSource) -> bytes:
    images = orjson.dumps({"before": before, "after": after})[:-1]
    return b"".join((images, b",", _head(source), stamp.before, _place(table), stamp.after, operation, stamp.end))
