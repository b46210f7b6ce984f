"""Decoded messages as Arrow rows, one row per change in commit order (a TRUNCATE has one for each of its tables).

    sequence, number          the message, and the change's number in it, from 1
    position                  commit_lsn and ordinal as numbers: positions compare as the source's commits do
    commit_lsn, commit_time, xid
    operation                 INSERT, UPDATE, DELETE or TRUNCATE
    schema, table
    before, after             the old row, as much of it as the source sent, and the new one: JSON text as ``worker stdout``
                              writes it, or columns of the one table that is read
    unchanged                 the columns that ``after`` does not hold because the source did not send them

Columns are looked up by their names: one that a message's version of the table does not have is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

import orjson
import pyarrow as pa

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW
from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    DefinitionChange,
    MessageChanges,
    Part,
    TableChanges,
    Transaction,
    Truncation,
)
from pgsluice.shared.wire.position import format_lsn
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.data_source.typed_columns import arrow_column
from pgsluice.worker.sinks.lines.json_rows import lines_of_slots, new_rows, object_slots, old_rows, whole_columns

UNIX_EPOCH_US = 946_684_800_000_000
"""The server's epoch, 2000-01-01 UTC, in microseconds since 1970."""
BATCH_ROWS = 16 * 1024
BATCH_BYTES = 8 * 1024 * 1024  # of bodies: a row of Arrow costs about as much as its text

_OPERATIONS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}

WantsTable = Callable[[str, str], bool]
WantsTransaction = Callable[[Transaction], bool]


class _Rows(NamedTuple):
    """Rows of one table, in the order of the change indexes."""

    table: Table
    indexes: Sequence[int]
    operations: Sequence[str]
    before: pa.Array
    after: pa.Array
    unchanged: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ChangeRows:
    """Makes rows of ``schema``, which is Arrow's form of what Spark was told."""

    schema: pa.Schema
    wants_table: WantsTable

    def batch(self, message: MessageChanges, wants: WantsTransaction) -> pa.RecordBatch | None:
        """The rows of the transactions that are wanted; None without any. Raises WireError for a value that cannot be told."""
        unwanted = _unwanted(message, wants)
        tables = [rows for part in message.parts for rows in self._rows(part, unwanted) if rows.indexes]
        return self._record_batch(message, tables) if tables else None

    def _rows(self, part: Part, unwanted: set[int]) -> Iterator[_Rows]:
        match part:
            case Truncation():
                if part.change_index not in unwanted:
                    for table in part.tables:
                        if self.wants_table(*table.source_name):
                            yield self._truncation(table, part.change_index)
            case TableChanges():
                if self.wants_table(*part.table.source_name):
                    if not unwanted.isdisjoint(part.change_indexes):
                        kept = [row for row, index in enumerate(part.change_indexes) if index not in unwanted]
                        part = part.select(kept)
                    yield self._changes(part)
            case DefinitionChange():
                pass  # a DataFrame has rows
            case _:
                assert_never(part)

    def _truncation(self, table: Table, index: int) -> _Rows:
        nothing = pa.nulls(1, self._image)
        return _Rows(table, [index], ["TRUNCATE"], nothing, nothing, [()])

    def _changes(self, part: TableChanges) -> _Rows:
        operations = [_OPERATIONS[operation] for operation in part.operations]
        images = _typed_images(part, self._image) if pa.types.is_struct(self._image) else _json_images(part)
        return _Rows(part.table, part.change_indexes, operations, *images)

    @property
    def _image(self) -> pa.DataType:
        return self.schema.field("after").type

    def _record_batch(self, message: MessageChanges, tables: Sequence[_Rows]) -> pa.RecordBatch:
        indexes = [index for rows in tables for index in rows.indexes]
        transactions = _transaction_of_each(message)
        stamps = [transactions[index] for index in indexes]
        lsns = [stamp.commit_lsn for stamp in stamps]
        ordinals = [stamp.first_ordinal + index - stamp.first_change for index, stamp in zip(indexes, stamps, strict=True)]
        position = [pa.array(numbers, pa.int64()) for numbers in (lsns, ordinals)]
        columns = {
            "sequence": [message.sequence] * len(indexes),
            "number": [index + 1 for index in indexes],
            "position": pa.StructArray.from_arrays(position, fields=list(self.schema.field("position").type)),
            "commit_lsn": list(map(_lsn_texts(lsns).__getitem__, lsns)),
            "commit_time": [UNIX_EPOCH_US + stamp.committed_at for stamp in stamps],
            "xid": [stamp.xid for stamp in stamps],
            "operation": [operation for rows in tables for operation in rows.operations],
            "schema": [rows.table.schema for rows in tables for _ in rows.indexes],
            "table": [rows.table.name for rows in tables for _ in rows.indexes],
            "before": pa.concat_arrays([rows.before for rows in tables]),
            "after": pa.concat_arrays([rows.after for rows in tables]),
            "unchanged": [names for rows in tables for names in rows.unchanged],
        }
        arrays = [_array(columns[field.name], field.type) for field in self.schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return batch if len(tables) == 1 else batch.take(pa.array(sorted(range(len(indexes)), key=indexes.__getitem__)))


def _array(values: pa.Array | Sequence[object], kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _unwanted(message: MessageChanges, wants: WantsTransaction) -> set[int]:
    """The indexes of the changes that are left out."""
    left_out = [transaction for transaction in message.transactions if not wants(transaction)]
    return {index for transaction in left_out for index in range(transaction.first_change, transaction.end_change)}


def _transaction_of_each(message: MessageChanges) -> list[Transaction]:
    """By change index."""
    return [transaction for transaction in message.transactions for _ in range(transaction.first_change, transaction.end_change)]


def _lsn_texts(lsns: Iterable[int]) -> dict[int, str]:
    return {lsn: format_lsn(lsn) for lsn in set(lsns)}


Images = tuple[pa.Array, pa.Array, Sequence[Sequence[str]]]
"""Old rows, new rows, and the columns that each new row lacks."""


def _json_images(part: TableChanges) -> Images:
    columns = whole_columns(part.table, part.new) if part.old is None and DELETE not in part.operations else None
    if columns is not None:
        lines = lines_of_slots([*object_slots(part.table, columns, range(len(columns))), b"\n"], len(part))
        after = pa.array([line[:-1] for line in lines], pa.string())
        return pa.nulls(len(part), pa.string()), after, [()] * len(part)
    befores = old_rows(part)
    afters, unchanged = new_rows(part, befores)
    texts = [pa.array([None if row is None else orjson.dumps(row) for row in rows], pa.string()) for rows in (befores, afters)]
    return texts[0], texts[1], [unchanged.get(row, ()) for row in range(len(part))]


def _typed_images(part: TableChanges, image: pa.StructType) -> Images:
    places = {column.name: place for place, column in enumerate(part.table.columns)}
    unchanged: list[list[str]] = [[] for _ in range(len(part))]
    is_deleted = [operation == DELETE for operation in part.operations]
    old_kinds = part.old_kinds or bytes(len(part))
    nothing: list[Value] = [None] * len(part)
    befores, afters = [], []
    for field in image:
        place = places.get(field.name)
        old = nothing if place is None or part.old is None else part.old[place]
        old = [None if value is UNCHANGED else value for value in old]
        new = nothing if place is None else _without_unchanged(part, place, old, unchanged)
        befores.append(_typed_column(part.table, field, old))
        afters.append(_typed_column(part.table, field, new))
    no_old = pa.array([kind == NO_OLD_ROW for kind in old_kinds])
    return _struct(befores, image, no_old), _struct(afters, image, pa.array(is_deleted)), unchanged


def _without_unchanged(part: TableChanges, place: int, old: Sequence[Value], unchanged: list[list[str]]) -> Sequence[Value]:
    """The new values of a column, from the old row where they were not sent; notes those rows that have it in neither."""
    values = part.new[place]
    if UNCHANGED not in values:
        return values
    taken = list(values)
    for row, value in enumerate(values):
        if value is UNCHANGED:
            taken[row] = old[row]
            if old[row] is None and part.operations[row] != DELETE:
                unchanged[row].append(part.table.columns[place].name)
    return taken


def _typed_column(table: Table, field: pa.Field, values: Sequence[Value]) -> pa.Array:
    try:
        return arrow_column(values, field.type)  # type: ignore[arg-type]
    except (ValueError, NotImplementedError):  # the text of Arrow's errors quotes the value
        raise WireError(
            f"a value of {table.qualified_name}.{field.name} cannot be told as {field.type}",
            "read the table by the option 'tables' in place of 'table': its rows are JSON text then, which takes any value",
        ) from None


def _struct(columns: Sequence[pa.Array], image: pa.StructType, is_null: pa.Array) -> pa.Array:
    if not columns:
        return pa.array([None if null else {} for null in is_null.to_pylist()], image)
    return pa.StructArray.from_arrays(columns, fields=list(image), mask=is_null)


def gathered(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, for each costs Spark the same. With each comes the size of its message."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch, message_bytes in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + message_bytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.concat_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.concat_batches(pending)
