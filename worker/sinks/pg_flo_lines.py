"""Changes as JSON lines in pg_flo's shape, for consumers that were written for it: one line per change, in commit order.

    {"Type": "UPDATE", "Schema": "public", "Table": "orders", "ReplicationKey": {"Type": "PRIMARY KEY", "Columns": ["id"]},
     "LSN": "16/B374D848", "EmittedAt": "2026-01-31T09:15:00.123456Z", "Position": "16/B374D848:3",
     "NewTuple": {"id": 7, "total": "12.50"}, "OldTuple": {"id": 6}, "Unchanged": ["note"]}

``NewTuple`` is not there in a DELETE, ``OldTuple`` only when the server sent an old row, with the columns that it sent. The
type in ``ReplicationKey`` is PRIMARY KEY, UNIQUE, FULL or "" (nothing identifies a row). ``LSN`` is that of the transaction's
commit and ``EmittedAt`` the time of it. A copied row is an INSERT whose ``LSN`` is its snapshot's and whose ``EmittedAt`` is
null.

Two keys are not pg_flo's. ``Position`` tells changes of one transaction apart, and is null for a copied row. ``Unchanged``,
present when it is not empty, names the columns that ``NewTuple`` leaves out because the server did not send them; pg_flo says
null of them, which is a value. Two types are not pg_flo's, which drops such changes: TRUNCATE, a line for each of its tables,
and RESTART, when a table is copied anew and what was copied of it before no longer counts. Both have no tuple.

Values: see ``pg_flo_values``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import orjson

from shared.changes import DELETE, INSERT, UPDATE, CopiedRows, MessageChanges, TableChanges, Truncation
from shared.lsn import LSN, format_lsn
from shared.table import ReplicaIdentity, Table
from worker.copied_rows import as_changes
from worker.sinks.json_images import Row, new_rows, old_rows
from worker.sinks.json_lines import format_timestamp
from worker.sinks.json_rows import Slot, lines_of_slots, object_slots, whole_columns
from worker.sinks.json_values import JsonColumn
from worker.sinks.pg_flo_values import PG_FLO_KINDS

_OPERATIONS = {INSERT: b"INSERT", UPDATE: b"UPDATE", DELETE: b"DELETE"}


def encode_lines(message: MessageChanges) -> list[bytes]:
    """As ``json_lines.encode_lines``."""
    stamps = _stamps(message)
    lines = [b""] * message.change_count
    for part in message.parts:
        if isinstance(part, Truncation):
            stamp = stamps[part.change_index]
            lines[part.change_index] += b"".join(_lone_line(b"TRUNCATE", table, stamp) for table in part.tables)
        else:
            for index, line in zip(part.change_indexes, _table_lines(part, stamps), strict=True):
                lines[index] += line
    return [line for line in lines if line]


def encode_copied(copied: CopiedRows) -> list[bytes]:
    """As ``json_lines.encode_copied``."""
    stamp = b',"LSN":%b,"EmittedAt":null,"Position":null' % orjson.dumps(_snapshot_lsn(copied.snapshot))
    if copied.restarts:
        return [_lone_line(b"RESTART", copied.table, stamp)]
    columns = whole_columns(copied.table, as_changes(copied).new, PG_FLO_KINDS)
    assert columns is not None, "a copied row has every value"
    return lines_of_slots([b'{"Type":"INSERT"', *_row_slots(copied.table, columns, stamp)], copied.rows)


def _stamps(message: MessageChanges) -> list[bytes]:
    """What each change's line says about its transaction."""
    stamps = [b""] * message.change_count
    for transaction in message.transactions:
        first, end, ordinal = transaction.first_change, transaction.end_change, transaction.first_ordinal
        lsn = format_lsn(transaction.commit_lsn).encode()
        emitted_at = format_timestamp(transaction.committed_at).encode()
        stamp = b',"LSN":"%b","EmittedAt":"%b","Position":"%b:%%d"' % (lsn, emitted_at, lsn)
        stamps[first:end] = [stamp % (ordinal + i) for i in range(end - first)]
    return stamps


def _snapshot_lsn(snapshot: str) -> str | None:
    """A snapshot's id begins with its LSN (``replicator.snapshot.export``); None for an id that does not."""
    try:
        return format_lsn(LSN(int(snapshot.partition("-")[0], 16)))
    except ValueError:
        return None


def _table_lines(changes: TableChanges, stamps: list[bytes]) -> Iterator[bytes]:
    whole = whole_columns(changes.table, changes.new, PG_FLO_KINDS) if changes.old is None else None
    if whole is None:
        return _lines_one_by_one(changes, stamps)
    slots = _row_slots(changes.table, whole, [stamps[index] for index in changes.change_indexes])
    operations = [_OPERATIONS[operation] for operation in changes.operations]
    return iter(lines_of_slots([b'{"Type":"', operations, b'"', *slots], len(changes)))


def _row_slots(table: Table, columns: list[JsonColumn], stamps: Slot) -> Iterator[Slot]:
    """A line behind its type, of rows without an old image."""
    yield _identity(table)
    yield stamps
    yield b',"NewTuple":'
    yield from object_slots(table, columns, range(len(columns)))
    yield b"}\n"


def _lines_one_by_one(changes: TableChanges, stamps: list[bytes]) -> Iterator[bytes]:
    identity = _identity(changes.table)
    befores = old_rows(changes, PG_FLO_KINDS)
    afters, unchanged = new_rows(changes, befores, PG_FLO_KINDS)
    for row, (index, operation) in enumerate(zip(changes.change_indexes, changes.operations, strict=True)):
        tuples: Row = {"NewTuple": afters[row], "OldTuple": befores[row], "Unchanged": unchanged.get(row)}
        body = orjson.dumps({key: value for key, value in tuples.items() if value is not None})[1:]
        comma = b"," if len(body) > 1 else b""
        yield b"".join((b'{"Type":"', _OPERATIONS[operation], b'"', identity, stamps[index], comma, body, b"\n"))


def _lone_line(kind: bytes, table: Table, stamp: bytes) -> bytes:
    return b"".join((b'{"Type":"', kind, b'"', _identity(table), stamp, b"}\n"))


@lru_cache(maxsize=1024)
def _identity(table: Table) -> bytes:
    """Schema, table and key, as JSON behind the type."""
    columns = [table.columns[index].name for index in table.key]
    said = {
        "Schema": table.schema,
        "Table": table.name,
        "ReplicationKey": {"Type": _key_type(table), "Columns": columns},
    }
    return b"," + orjson.dumps(said)[1:-1]


def _key_type(table: Table) -> str:
    if table.key:
        primary = {index for index, column in enumerate(table.columns) if column.primary_key_position is not None}
        return "PRIMARY KEY" if primary == set(table.key) else "UNIQUE"
    return "FULL" if table.replica_identity is ReplicaIdentity.FULL else ""
