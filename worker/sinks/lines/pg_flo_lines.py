"""Changes as JSON lines in pg_flo's shape, for consumers that were written for it: one line per change, in commit order.

    {"Type": "UPDATE", "Schema": "public", "Table": "orders", "ReplicationKey": {"Type": "PRIMARY KEY", "Columns": ["id"]},
     "LSN": "16/B374D848", "EmittedAt": "2026-01-31T09:15:00.123456Z", "Position": "16/B374D848:3",
     "NewTuple": {"id": 7, "total": "12.50"}, "OldTuple": {"id": 6}, "Unchanged": ["note"]}

``NewTuple`` is not there in a DELETE, ``OldTuple`` only when the server sent an old row, with the columns that it sent.
The type in ``ReplicationKey`` is PRIMARY KEY, UNIQUE, FULL or "" (nothing identifies a row). ``LSN`` is the LSN of the
transaction's commit and ``EmittedAt`` its time. A copied row is an INSERT whose ``LSN`` is its snapshot's and whose
``EmittedAt`` is null.

Two keys are not pg_flo's. ``Position`` distinguishes changes of one transaction, and is null for a copied row.
``Unchanged``, present when it is not empty, names the columns that ``NewTuple`` leaves out because the server did not
send them; pg_flo writes null for them, which is a value. Two types are not pg_flo's, which drops such changes:
TRUNCATE, a line for each of its tables, and RESTART, when a table is copied again and rows copied before become
invalid. Both have no tuple.

Values are as in ``json_values`` except these, which are pg_flo's: numeric and oid are strings, bytea is base64,
timestamps with and without a time zone and dates are RFC 3339 (those without a zone as if in UTC), and arrays of
integers, floats, booleans and text are JSON arrays. Values at which pg_flo fails are the server's text here: NaN and
infinities, years that RFC 3339 does not have. Arrays are read as PostgreSQL writes them, with quotes, NULL and more
than one dimension.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import unhexlify
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import assert_never

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
from pgsluice.shared.wire.position import LSN, format_lsn
from pgsluice.shared.wire.table import ReplicaIdentity, Table
from pgsluice.worker.sinks.lines.definition_fields import concerned_name, definition_fields
from pgsluice.worker.sinks.lines.json_lines import as_changes, format_timestamp
from pgsluice.worker.sinks.lines.json_rows import (
    KINDS,
    NULL,
    JsonColumn,
    Kinds,
    Row,
    Slot,
    booleans,
    integers,
    lines_of_slots,
    new_rows,
    numbers,
    object_slots,
    old_rows,
    strings,
    whole_columns,
)

_DASH = ord("-")
_LAST_DIGIT = ord("9")
_NO_CALENDAR = re.compile(rb"[-+ :.0-9A-Za-z]+")
_BOUNDS = re.compile(rb"(?:\[[+-]?\d+:[+-]?\d+\])+=")
_TOKEN = re.compile(rb'([{},])|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+)', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_BRACKETS = {b"{": b"[", b"}": b"]", b",": b","}


def base64_texts(values: Sequence[bytes]) -> JsonColumn:
    if not all(value.startswith(b"\\x") for value in values):
        raise ValueError("not a bytea")
    return JsonColumn([b64encode(unhexlify(value[2:])) for value in values], b'"')


def calendar(end: bytes, suffix: bytes) -> Callable[[Sequence[bytes]], JsonColumn]:
    """Returns a converter of texts that end in ``end``, which becomes ``suffix``. Far years and infinity stay what they
    are."""

    def column(values: Sequence[bytes]) -> JsonColumn:
        return JsonColumn([_rfc_3339(value, end, suffix) for value in values], b'"')

    return column


def _rfc_3339(value: bytes, end: bytes, suffix: bytes) -> bytes:
    if len(value) >= 10 and value[4] == _DASH and value.endswith(end) and value[len(value) - len(end) - 1] <= _LAST_DIGIT:
        return value[: len(value) - len(end)].replace(b" ", b"T") + suffix
    if _NO_CALENDAR.fullmatch(value) is None:
        raise ValueError("neither a date nor a timestamp")
    return value


def array_of(element: Callable[[Sequence[bytes]], JsonColumn]) -> Callable[[Sequence[bytes]], JsonColumn]:
    def column(values: Sequence[bytes]) -> JsonColumn:
        return JsonColumn([_json_array(value, element) for value in values], b"")

    return column


def _json_array(text: bytes, element: Callable[[Sequence[bytes]], JsonColumn]) -> bytes:
    """Raises ValueError for what is not an array (manual: "Array Input and Output Syntax")."""
    bounds = _BOUNDS.match(text)
    position = bounds.end() if bounds else 0
    pieces = []
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError("not an array")
        position = token.end()
        bracket, quoted, bare = token.groups()
        if bracket is not None:
            pieces.append(_BRACKETS[bracket])
        elif bare == b"NULL":
            pieces.append(NULL)
        else:
            (piece,) = element([_ESCAPE.sub(rb"\1", bare if quoted is None else quoted)]).whole()
            pieces.append(piece)
    array = b"".join(pieces)
    if not isinstance(orjson.loads(array), list):
        raise ValueError("not an array")
    return array


PG_FLO_KINDS: Kinds = {
    **{oid: kind for oid, kind in KINDS.items() if oid not in (26, 1700)},  # oid and numeric are strings
    17: base64_texts,
    1000: array_of(booleans),
    1005: array_of(integers),  # int2[]
    1007: array_of(integers),  # int4[]
    1009: array_of(strings),  # text[]
    1015: array_of(strings),  # varchar[]
    1016: array_of(integers),  # int8[]
    1021: array_of(numbers),  # float4[]
    1022: array_of(numbers),  # float8[]
    1082: calendar(b"", b"T00:00:00Z"),  # date
    1114: calendar(b"", b"Z"),  # timestamp
    1184: calendar(b"+00", b"Z"),  # timestamptz
}
"""Converters by type OID (pg_type.dat)."""

_OPERATIONS = {INSERT: b"INSERT", UPDATE: b"UPDATE", DELETE: b"DELETE"}


def encode_lines(message: MessageChanges) -> list[bytes]:
    """Like ``json_lines.encode_lines``."""
    stamps = _stamps(message)
    lines = [b""] * message.change_count
    for part in message.parts:
        match part:
            case TableChanges():
                for index, line in zip(part.change_indexes, _table_lines(part, stamps), strict=True):
                    lines[index] += line
            case Truncation():
                stamp = stamps[part.change_index]
                lines[part.change_index] += b"".join(_lone_line(b"TRUNCATE", table, stamp) for table in part.tables)
            case DefinitionChange():
                lines[part.change_index] += _definition_line(part, stamps[part.change_index])
            case unreachable:
                assert_never(unreachable)
    return [line for line in lines if line]


def encode_copied(copied: CopiedRows) -> list[bytes]:
    """Like ``json_lines.encode_copied``."""
    stamp = b',"LSN":%b,"EmittedAt":null,"Position":null' % orjson.dumps(_snapshot_lsn(copied.snapshot))
    if copied.restarts:
        return [_lone_line(b"RESTART", copied.table, stamp)]
    columns = whole_columns(copied.table, as_changes(copied).new, PG_FLO_KINDS)
    assert columns is not None, "a copied row has every value"
    return lines_of_slots([b'{"Type":"INSERT"', *_row_slots(copied.table, columns, stamp)], copied.rows)


def _stamps(message: MessageChanges) -> list[bytes]:
    """Returns the transaction fields of each change's line."""
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
    """Yields a line after its type, of rows without an old image."""
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


def _definition_line(change: DefinitionChange, stamp: bytes) -> bytes:
    """Returns the line, with a description where pg_flo has the text of the command, which is less complete."""
    schema, name = concerned_name(change.definition)
    said = {"Schema": schema, "Table": name, "NewTuple": definition_fields(change.definition)}
    return b"".join((b'{"Type":"DDL",', orjson.dumps(said)[1:-1], stamp, b"}\n"))


@lru_cache(maxsize=1024)
def _identity(table: Table) -> bytes:
    """Returns schema, table and key, as JSON after the type."""
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
