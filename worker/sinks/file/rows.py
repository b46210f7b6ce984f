"""Changes as Arrow rows, one record batch for each table: the content of the Parquet files.

Before the columns of the table come those of the change, which begin with an underscore:

    _operation       INSERT, UPDATE, DELETE, TRUNCATE; READ for a copied row, RESTART when the table is copied again
    _position        where the change is, as in JSON lines; null for READ and RESTART, as are the next four
    _commit_lsn, _ordinal     the same as two numbers that order all changes
    _xid, _committed_at     of its transaction
    _snapshot        of a copied row
    _unchanged       the columns that are null because the server did not send them
    _before          an UPDATE's old row, as much of it as was sent, as a JSON object
    _as_text         values that are null because their column's type has no place for them, as a JSON object

An INSERT or UPDATE has the new row, a DELETE as much of the old one as was sent. The rows of a table are in commit
order.

Postgres's text becomes these types:

    int2, int4, int8, oid       int16, int32, int64, int64
    float4, float8, bool        float, double, bool
    numeric(p, s)               decimal128(p, s) up to 38 digits; a string otherwise
    date                        date32
    timestamp, timestamptz      timestamp in microseconds, without a zone and in UTC
    bytea                       binary
    everything else             string, as the server prints it

Some values cannot be represented in their type: NaN in a decimal, infinite dates, years before 1 or after 9999. They
are null in the column, and their text is in _as_text.
"""

from __future__ import annotations

import hashlib
import re
from binascii import unhexlify
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, assert_never

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.shared.errors import TerminalError, WireError
from pgsluice.shared.pgoutput.messages import OLD_KEY, OLD_ROW
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
from pgsluice.shared.wire.position import POSTGRES_EPOCH, format_lsn
from pgsluice.shared.wire.table import UNCHANGED, Column, Table, Unchanged, Value
from pgsluice.worker.sinks.lines.json_lines import as_changes
from pgsluice.worker.sinks.lines.json_rows import old_rows

LARGEST_PRECISION = 38  # of decimal128, and the largest that Spark and most databases know

_BOOL = 16
_BYTEA = 17
_NUMERIC = 1700
_ARROW_TYPES: dict[int, pa.DataType] = {
    _BOOL: pa.bool_(),
    _BYTEA: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
"""Arrow types by type OID (pg_type.dat)."""

_BOOLEANS = {b"t": True, b"f": False, None: None}

_DAY = r"\d{4}-\d{2}-\d{2}"
_TIME = r" \d{2}:\d{2}:\d{2}(\.\d{1,6})?"
_FITTING: dict[int, str] = {
    1082: f"^{_DAY}$",
    1114: f"^{_DAY}{_TIME}$",
    1184: f"^{_DAY}{_TIME}\\+00$",
    _NUMERIC: r"^-?\d+(\.\d+)?$",
}
"""Values that the Arrow type can hold, for types with other values too."""


def arrow_type(column: Column) -> pa.DataType:
    if column.type_oid == _NUMERIC:
        return _decimal(column.typmod) or pa.string()
    return _ARROW_TYPES.get(column.type_oid, pa.string())


def _decimal(typmod: int) -> pa.DataType | None:
    """Returns None for a numeric without a precision, and for numerics that PostgreSQL 15 allows and a decimal does not
    have: a negative scale, or one beyond the precision. (numeric.c: the typmod is precision << 16 | scale, an 11-bit
    signed number, plus 4.)"""
    if typmod < 4:
        return None
    precision = (typmod - 4) >> 16 & 0xFFFF
    scale = (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400
    return pa.decimal128(precision, scale) if precision <= LARGEST_PRECISION and 0 <= scale <= precision else None


def typed_column(column: Column, values: Sequence[bytes | None], table_name: str) -> tuple[pa.Array, dict[int, str]]:
    """Returns the column, and by row the texts of values that it cannot hold. Raises WireError for a value that is not
    of its type."""
    kind = arrow_type(column)
    try:
        if column.type_oid == _BOOL:
            return pa.array([_BOOLEANS[value] for value in values], kind), {}
        if column.type_oid == _BYTEA:
            return pa.array([None if value is None else unhexlify(value[2:]) for value in values], kind), {}
        text = pa.array(values, pa.binary()).cast(pa.string())
        try:
            return text.cast(kind), {}
        except pa.ArrowInvalid:
            if kind == pa.string() or column.type_oid not in _FITTING:
                raise
            return _fitting(text, kind, _FITTING[column.type_oid])
    except (pa.ArrowInvalid, KeyError, ValueError):
        raise WireError(f"a value of {table_name}.{column.name} is not of its type {column.type_name}") from None


def _fitting(text: pa.Array, kind: pa.DataType, pattern: str) -> tuple[pa.Array, dict[int, str]]:
    fits = pc.match_substring_regex(text, pattern)
    typed = pc.if_else(fits, text, pa.scalar(None, pa.string())).cast(kind)
    return typed, {row: text[row].as_py() for row in pc.indices_nonzero(pc.invert(fits)).to_pylist()}


_SPECIAL = re.compile(r"[^\w-]")


LONGEST_NAME_BYTES = 255
"""Limit of a directory's name on common file systems."""
_DIGEST_DIGITS = 16


def directory_name(schema: str, table: str) -> str:
    """Returns ``schema.table`` as a directory may be called: what has a meaning in paths is replaced by its code, as in
    a URL. What is longer than a file system takes ends in a digest of all of it."""
    name = ".".join(
        _SPECIAL.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), part) for part in (schema, table)
    )
    if len(name.encode()) <= LONGEST_NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]
    room = LONGEST_NAME_BYTES - len(digest) - 1
    return f"{name.encode()[:room].decode(errors='ignore')}~{digest}"  # a tilde that a name holds is replaced


_EPOCH_US = int(POSTGRES_EPOCH.timestamp()) * 1_000_000  # since 1970

SCHEMA_NAME = b"pgsluice.schema"
TABLE_NAME = b"pgsluice.table"
"""Keys of a schema's metadata: whose rows they are."""

_FIELD_ID = b"PARQUET:field_id"
"""Arrow's key of the same."""

_OPERATIONS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}
_CHANGE_FIELDS = (
    pa.field("_operation", pa.string()),
    pa.field("_position", pa.string()),
    pa.field("_commit_lsn", pa.int64()),
    pa.field("_ordinal", pa.int64()),
    pa.field("_xid", pa.int64()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
    pa.field("_snapshot", pa.string()),
    pa.field("_unchanged", pa.list_(pa.string())),
    pa.field("_before", pa.string()),
    pa.field("_as_text", pa.string()),
)
_CHANGE_NAMES = {field.name for field in _CHANGE_FIELDS}

Images = list[Sequence[bytes | None]]
"""One list per column, without UNCHANGED."""


@lru_cache(maxsize=1024)
def rows_schema(table: Table) -> pa.Schema:
    """Raises TerminalError when the table has a column with one of the reserved names."""
    taken = sorted(_CHANGE_NAMES.intersection(column.name for column in table.columns))
    if taken:
        raise TerminalError(
            f"{table.qualified_name} has a column '{taken[0]}', which is a column of every Parquet file",
            "rename it on the way, with column_mappings in the routing file, or use format: json",
        )
    fields = [*_CHANGE_FIELDS, *map(_field, table.columns)]
    return pa.schema(fields, metadata={SCHEMA_NAME: table.schema.encode(), TABLE_NAME: table.name.encode()})


def _field(column: Column) -> pa.Field:
    """Returns the field, with the column's number as Parquet's field id: a column that was dropped and created again
    under its name is another, and its rows are in another file."""
    return pa.field(column.name, arrow_type(column), metadata={_FIELD_ID: b"%d" % column.number} if column.number else None)


def rows_of_message(message: MessageChanges) -> Iterator[pa.RecordBatch]:
    """Yields each table's rows in commit order. Raises WireError for a value that is not of its type."""
    stamps = _Stamps(message)
    for part in message.parts:
        match part:
            case TableChanges():
                operations = [_OPERATIONS[operation] for operation in part.operations]
                yield _rows(part, operations, stamps.columns(part.change_indexes), None)
            case Truncation():
                for table in part.tables:
                    yield _lone_row(table, "TRUNCATE", stamps.columns([part.change_index]), None)
            case DefinitionChange():
                pass  # rows of another definition have another schema, and so another file
            case unreachable:
                assert_never(unreachable)


def rows_of_copy(copied: CopiedRows) -> pa.RecordBatch:
    if copied.restarts:
        return _lone_row(copied.table, "RESTART", _no_stamps(1), copied.snapshot)
    changes = as_changes(copied)
    return _rows(changes, ["READ"] * len(changes), _no_stamps(len(changes)), copied.snapshot)


class _Stamps:
    """The transaction fields of a message's rows."""

    def __init__(self, message: MessageChanges) -> None:
        self._of_changes: list[tuple[str, int, int, int, int]] = []
        for transaction in message.transactions:
            lsn, xid, commit_lsn = format_lsn(transaction.commit_lsn), transaction.xid, transaction.commit_lsn
            committed_at, first = transaction.committed_at + _EPOCH_US, transaction.first_ordinal
            self._of_changes += [
                (f"{lsn}:{ordinal}", commit_lsn, ordinal, xid, committed_at)
                for ordinal in range(first, first + transaction.end_change - transaction.first_change)
            ]

    def columns(self, change_indexes: Sequence[int]) -> list[pa.Array]:
        """Returns ``_position`` to ``_committed_at``."""
        stamps = zip(*map(self._of_changes.__getitem__, change_indexes), strict=True)
        return [pa.array(column, field.type) for column, field in zip(stamps, _CHANGE_FIELDS[1:6], strict=True)]


def _no_stamps(count: int) -> list[pa.Array]:
    return [pa.nulls(count, field.type) for field in _CHANGE_FIELDS[1:6]]


def _lone_row(table: Table, operation: str, stamps: list[pa.Array], snapshot: str | None) -> pa.RecordBatch:
    """Returns a row without values."""
    schema = rows_schema(table)
    known = [pa.array([operation]), *stamps, pa.array([snapshot], pa.string())]
    return pa.RecordBatch.from_arrays([*known, *(pa.nulls(1, field.type) for field in list(schema)[len(known) :])], schema=schema)


def _rows(changes: TableChanges, operations: list[str], stamps: list[pa.Array], snapshot: str | None) -> pa.RecordBatch:
    table, count = changes.table, len(changes)
    schema = rows_schema(table)
    images, unchanged = _images(changes)
    columns, texts = [], dict[int, dict[str, str]]()
    for column, values in zip(table.columns, images, strict=True):
        typed, misfits = typed_column(column, values, table.qualified_name)
        columns.append(typed)
        for row, text in misfits.items():
            texts.setdefault(row, {})[column.name] = text
    arrays = [
        pa.array(operations, pa.string()),
        *stamps,
        pa.repeat(snapshot, count) if snapshot is not None else pa.nulls(count, pa.string()),
        _sparse(unchanged, count, pa.list_(pa.string())),
        _sparse(_befores(changes), count, pa.string()),
        _sparse({row: orjson.dumps(values).decode() for row, values in texts.items()}, count, pa.string()),
        *columns,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _sparse(values: dict[int, Any], count: int, kind: pa.DataType) -> pa.Array:
    """Returns a column that is null except in a few rows."""
    return pa.array([values.get(row) for row in range(count)], kind) if values else pa.nulls(count, kind)


def _befores(changes: TableChanges) -> dict[int, str]:
    if changes.old is None or UPDATE not in changes.operations:
        return {}
    return {
        row: orjson.dumps(before).decode()
        for row, before in enumerate(old_rows(changes))
        if before is not None and changes.operations[row] == UPDATE
    }


def _images(changes: TableChanges) -> tuple[Images, dict[int, list[str]]]:
    """Returns the row for each change, and the names of its missing columns, for rows with any."""
    columns: Sequence[Sequence[Value]] = changes.new
    if changes.old is not None and DELETE in changes.operations:
        columns = [
            [old if operation == DELETE else new for operation, old, new in zip(changes.operations, *pair, strict=True)]
            for pair in zip(changes.old, changes.new, strict=True)
        ]
    unchanged: dict[int, list[str]] = {}
    images: Images = []
    for index, values in enumerate(columns):
        if Unchanged in set(map(type, values)):
            values = _filled(changes, index, values, unchanged)
        images.append(values)  # type: ignore[arg-type]
    return images, unchanged


def _filled(changes: TableChanges, index: int, values: Sequence[Value], unchanged: dict[int, list[str]]) -> list[Value]:
    """Returns ``values`` with UNCHANGED replaced by what the old row holds, or else by NULL and a note in
    ``unchanged``."""
    filled = list(values)
    for row, value in enumerate(values):
        if value is not UNCHANGED:
            continue
        filled[row] = _old_value(changes, index, row)
        if filled[row] is UNCHANGED:
            filled[row] = None
            unchanged.setdefault(row, []).append(changes.table.columns[index].name)
    return filled


def _old_value(changes: TableChanges, index: int, row: int) -> Value:
    """Returns UNCHANGED when the old row lacks the value."""
    if changes.old is None or changes.old_kinds is None or changes.operations[row] != UPDATE:
        return UNCHANGED
    kind = changes.old_kinds[row]
    is_known = kind == OLD_ROW or (kind == OLD_KEY and changes.table.columns[index].identity_key)
    return changes.old[index][row] if is_known else UNCHANGED
