"""Decoded messages as Arrow rows, one row per change in commit order (a TRUNCATE has one for each of its tables).

    sequence, number          the message, and the change's number in it, from 1
    position                  commit_lsn and ordinal as numbers: positions compare as the source's commits do
    position_text             the same as lines and files write it
    committed_at, xid
    operation                 INSERT, UPDATE, DELETE or TRUNCATE; of a copy RESTART where it begins, and READ for each of its rows
    schema, table
    before, after             the old row, as much of it as the source sent, and the new one: JSON text as ``worker stdout``
                              writes it, or columns of the one table that is read
    unchanged                 the columns that ``after`` does not hold because the source did not send them, or the table did not
                              have them yet
    as_text                   of typed rows: values that ``before`` and ``after`` cannot hold, by their columns' names

The rows of a copy have its LSN, below the first change of a transaction that commits there; ``sequence`` is one of
another stream. A copy does not contain who wrote them and when.

Typed columns are found by their numbers, where these are known, else by their names: one that a message's version of
the table does not have is NULL. The rows cannot hold a value that their column's type does not have, nor one of a
column that they lack, because the source added it later or dropped it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

import orjson
import pyarrow as pa

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
from pgsluice.worker.data_source.typed_columns import fitting_column
from pgsluice.worker.sinks.lines.json_rows import lines_of_slots, new_rows, object_slots, old_rows, whole_columns

UNIX_EPOCH_US = 946_684_800_000_000
"""The server's epoch, 2000-01-01 UTC, in microseconds since 1970."""
BATCH_ROWS = 16 * 1024
BATCH_BYTES = 8 * 1024 * 1024  # of bodies: a row of Arrow costs about as much as its text

_OPERATIONS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}

WantsTable = Callable[[int, str, str], bool]
WantsTransaction = Callable[[Transaction], bool]


_Misfits = dict[str, dict[str, str]]
"""Values that the old and the new row cannot hold, under "before" and "after", by their columns' names."""


class _ArrowRows(NamedTuple):
    """Rows of one table, sorted by change index."""

    table: Table
    indexes: Sequence[int]
    operations: Sequence[str]
    before: pa.Array
    after: pa.Array
    unchanged: Sequence[Sequence[str]]
    as_text: Sequence[_Misfits | None]


@dataclass(frozen=True)
class ChangeRows:
    """Makes rows of ``schema``, which is Arrow's form of Spark's schema. ``wants_table`` is called with an OID, a
    schema and a name; ``numbers`` are the typed columns' numbers, by name."""

    schema: pa.Schema
    wants_table: WantsTable
    numbers: Mapping[str, int] = field(default_factory=dict)

    def batch(self, message: MessageChanges, wants: WantsTransaction) -> pa.RecordBatch | None:
        """Returns the rows of the wanted transactions; None without any. Raises WireError for a value that cannot be
        represented."""
        unwanted = _unwanted(message, wants)
        tables = [rows for part in message.parts for rows in self._rows(part, unwanted) if rows.indexes]
        if not tables:
            return None
        indexes = [index for rows in tables for index in rows.indexes]
        transactions = _transaction_of_each(message)
        stamps = [transactions[index] for index in indexes]
        ordinals = [stamp.first_ordinal + index - stamp.first_change for index, stamp in zip(indexes, stamps, strict=True)]
        batch = self._record_batch(message.sequence, tables, [stamp.commit_lsn for stamp in stamps], ordinals, stamps)
        return batch if len(tables) == 1 else batch.take(pa.array(sorted(range(len(indexes)), key=indexes.__getitem__)))

    def copied_batch(self, sequence: int, lsn: int, table: Table, rows: TableChanges | None) -> pa.RecordBatch:
        """Returns the rows of a copy with that LSN, given as inserts; without any, the row RESTART at its begin. Raises
        as ``batch``."""
        made = self._alone(table, 0, "RESTART") if rows is None else self._changes(rows)._replace(operations=["READ"] * len(rows))
        count = len(made.indexes)
        return self._record_batch(sequence, [made], [lsn] * count, [0] * count, [None] * count)

    def _rows(self, part: Part, unwanted: set[int]) -> Iterator[_ArrowRows]:
        match part:
            case Truncation():
                if part.change_index not in unwanted:
                    for table in part.tables:
                        if self.wants_table(table.oid, *table.source_name):
                            yield self._alone(table, part.change_index, "TRUNCATE")
            case TableChanges():
                if self.wants_table(part.table.oid, *part.table.source_name):
                    if not unwanted.isdisjoint(part.change_indexes):
                        kept = [row for row, index in enumerate(part.change_indexes) if index not in unwanted]
                        part = part.select(kept)
                    yield self._changes(part)
            case DefinitionChange():
                pass  # a DataFrame has rows
            case _:
                assert_never(part)

    def _alone(self, table: Table, index: int, operation: str) -> _ArrowRows:
        """Returns the row of a change that concerns the whole table."""
        nothing = pa.nulls(1, self._image)
        return _ArrowRows(table, [index], [operation], nothing, nothing, [()], [None])

    def _changes(self, part: TableChanges) -> _ArrowRows:
        operations = [_OPERATIONS[operation] for operation in part.operations]
        images = self._typed_images(part) if pa.types.is_struct(self._image) else _json_images(part)
        return _ArrowRows(part.table, part.change_indexes, operations, *images)

    def _typed_images(self, part: TableChanges) -> Images:
        unchanged: list[list[str]] = [[] for _ in range(len(part))]
        as_text: list[_Misfits | None] = [None] * len(part)
        is_deleted = [operation == DELETE for operation in part.operations]
        is_alone = [kind == NO_OLD_ROW for kind in part.old_kinds or bytes(len(part))]
        nothing: list[Value] = [None] * len(part)
        befores, afters = dict[str, pa.Array](), dict[str, pa.Array]()
        for place, name in self._places(part.table):
            old = nothing if place is None or part.old is None else part.old[place]
            old = [None if value is UNCHANGED else value for value in old]
            new = _sent_values(part, place, old, name, unchanged)
            for image, typed, values in (("before", befores, old), ("after", afters, new)):
                misfits: Iterable[int] = range(len(part))
                if name is not None:
                    typed[name], misfits = fitting_column(values, self._image.field(name).type)  # type: ignore[arg-type]
                if place is not None:
                    _note_misfits(as_text, image, name or part.table.columns[place].name, values, misfits)
        images = [[typed[each.name] for each in self._image] for typed in (befores, afters)]
        nulls = pa.array(is_alone, pa.bool_()), pa.array(is_deleted, pa.bool_())
        return _struct(images[0], self._image, nulls[0]), _struct(images[1], self._image, nulls[1]), unchanged, as_text

    def _places(self, table: Table) -> Iterator[tuple[int | None, str | None]]:
        """Yields each field of the rows with the place of its column, and then the columns that have no field."""
        numbers = {column.number: place for place, column in enumerate(table.columns) if column.number}
        names = {column.name: (place, column.number) for place, column in enumerate(table.columns)}
        taken = set()
        for each in self._image:
            number, (place, its_number) = self.numbers.get(each.name, 0), names.get(each.name, (None, 0))
            if number and (its_number or number in numbers):
                place = numbers.get(number)
            taken.add(place)
            yield place, each.name
        yield from ((place, None) for place in range(len(table.columns)) if place not in taken)

    @property
    def _image(self) -> pa.DataType:
        return self.schema.field("after").type

    def _record_batch(
        self,
        sequence: int,
        tables: Sequence[_ArrowRows],
        lsns: Sequence[int],
        ordinals: Sequence[int],
        stamps: Sequence[Transaction | None],
    ) -> pa.RecordBatch:
        """Returns the rows of the tables one after the other."""
        texts = _lsn_texts(lsns)
        position = [pa.array(numbers, pa.int64()) for numbers in (lsns, ordinals)]
        columns = {
            "sequence": [sequence] * len(lsns),
            "number": [index + 1 for rows in tables for index in rows.indexes],
            "position": pa.StructArray.from_arrays(position, fields=list(self.schema.field("position").type)),
            "position_text": [f"{texts[lsn]}:{ordinal}" for lsn, ordinal in zip(lsns, ordinals, strict=True)],
            "committed_at": [None if stamp is None else UNIX_EPOCH_US + stamp.committed_at for stamp in stamps],
            "xid": [None if stamp is None else stamp.xid for stamp in stamps],
            "operation": [operation for rows in tables for operation in rows.operations],
            "schema": [rows.table.schema for rows in tables for _ in rows.indexes],
            "table": [rows.table.name for rows in tables for _ in rows.indexes],
            "before": pa.concat_arrays([rows.before for rows in tables]),
            "after": pa.concat_arrays([rows.after for rows in tables]),
            "unchanged": [names for rows in tables for names in rows.unchanged],
            "as_text": [misfits for rows in tables for misfits in rows.as_text],
        }
        arrays = [_array(columns[field.name], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _array(values: pa.Array | Sequence[object], kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _unwanted(message: MessageChanges, wants: WantsTransaction) -> set[int]:
    """Returns the indexes of the changes that are left out."""
    left_out = [transaction for transaction in message.transactions if not wants(transaction)]
    return {index for transaction in left_out for index in range(transaction.first_change, transaction.end_change)}


def _transaction_of_each(message: MessageChanges) -> list[Transaction]:
    """Returns the transactions by change index."""
    return [transaction for transaction in message.transactions for _ in range(transaction.first_change, transaction.end_change)]


def _lsn_texts(lsns: Iterable[int]) -> dict[int, str]:
    return {lsn: format_lsn(lsn) for lsn in set(lsns)}


Images = tuple[pa.Array, pa.Array, Sequence[Sequence[str]], Sequence[_Misfits | None]]
"""Old rows, new rows, the columns that each new row lacks, and the values that neither can hold."""


def _json_images(part: TableChanges) -> Images:
    columns = whole_columns(part.table, part.new) if part.old is None and DELETE not in part.operations else None
    if columns is not None:
        lines = lines_of_slots([*object_slots(part.table, columns, range(len(columns))), b"\n"], len(part))
        after = pa.array([line[:-1] for line in lines], pa.string())
        return pa.nulls(len(part), pa.string()), after, [()] * len(part), [None] * len(part)
    befores = old_rows(part)
    afters, unchanged = new_rows(part, befores)
    texts = [pa.array([None if row is None else orjson.dumps(row) for row in rows], pa.string()) for rows in (befores, afters)]
    return texts[0], texts[1], [unchanged.get(row, ()) for row in range(len(part))], [None] * len(part)


def _sent_values(
    part: TableChanges, place: int | None, old: Sequence[Value], name: str | None, unchanged: list[list[str]]
) -> Sequence[Value]:
    """Returns the new values of a column, from the old row where they were not sent; notes rows that have it in
    neither. ``name`` is the column's field, if any."""
    if place is None:
        for row, operation in enumerate(part.operations):
            if operation != DELETE and name is not None:
                unchanged[row].append(name)
        return [None] * len(part)
    values = part.new[place]
    if UNCHANGED not in values:
        return values
    taken = list(values)
    for row, value in enumerate(values):
        if value is UNCHANGED:
            taken[row] = old[row]
            if old[row] is None and part.operations[row] != DELETE:
                unchanged[row].append(name or part.table.columns[place].name)
    return taken


def _note_misfits(as_text: list[_Misfits | None], image: str, column: str, values: Sequence[Value], rows: Iterable[int]) -> None:
    for row in rows:
        value = values[row]
        if isinstance(value, bytes):
            noted = as_text[row] = as_text[row] or {}
            noted.setdefault(image, {}).setdefault(column, value.decode(errors="backslashreplace"))


def _struct(columns: Sequence[pa.Array], image: pa.StructType, is_null: pa.Array) -> pa.Array:
    if not columns:
        return pa.array([None if null else {} for null in is_null.to_pylist()], image)
    return pa.StructArray.from_arrays(columns, fields=list(image), mask=is_null)


def gathered(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """Yields the rows in fewer batches, because each costs Spark the same. Each comes with the size of its message."""
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
