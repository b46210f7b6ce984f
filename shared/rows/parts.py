"""The parts of a message, collected by ``shared.rows.columns``: rows by table, parts in order, transactions.

Runs of row frames that follow each other and begin with the same eight bytes, their *shape*, are read together. Bodies
are padded (PADDING), so that a frame's or a value's head can be unpacked where the shortest begins. Lengths are never
trusted: values are taken one after the other, and every row must end exactly where its frame ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.decoder import NEW_ROW, NULL, TEXT, value_without_bytes
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY, OLD_ROW, Relation, RelationColumn, Truncate
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, DefinitionChange, Part, TableChanges, Transaction, Truncation
from pgsluice.shared.rows.plain_rows import PlainRows, rows_of_frames
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table, Value

FRAME = struct.Struct(">I8s")
"""A frame's length and first eight bytes."""
PADDING = bytes(FRAME.size)
_VALUE = struct.Struct(">BI")
"""A column value's kind and, when the kind is TEXT, its length."""


FEWEST_PLAIN_ROWS = 100  # below that, reading rows one by one is no slower than a hundred steps of NumPy
_HEAD = Struct(">BIBH")
_OLD_KINDS = {
    (INSERT, NEW_ROW): NO_OLD_ROW,
    (UPDATE, NEW_ROW): NO_OLD_ROW,
    (UPDATE, OLD_KEY): OLD_KEY,
    (UPDATE, OLD_ROW): OLD_ROW,
    (DELETE, OLD_KEY): OLD_KEY,
    (DELETE, OLD_ROW): OLD_ROW,
}
"""The old image of a row, by its operation and the first image in its frame."""
Deferral = tuple[Callable[[bytes], None], Callable[[int], None], Callable[[int], None]]
"""Appending methods for a frame, its length, and the index of its change."""


def measure_run(body: bytes, position: int, head: bytes) -> tuple[int, list[int]]:
    """Returns the end of the run that begins at ``position``, and the lengths of its frames. Reads no value."""
    lengths: list[int] = []
    append, unpack_frame = lengths.append, FRAME.unpack_from
    length, frame_head = unpack_frame(body, position)
    while frame_head == head:
        append(length)
        position += 4 + length
        length, frame_head = unpack_frame(body, position)
    return position, lengths


def read_run(body: bytes, position: int, head: bytes, width: int, values: list[Value]) -> tuple[int, int]:
    """Appends the values of all frames of a run; returns where the next frame begins, and how many the run has."""
    append, unpack_frame, unpack_value, columns = values.append, FRAME.unpack_from, _VALUE.unpack_from, range(width)
    count = 0
    length, frame_head = unpack_frame(body, position)
    while frame_head == head:
        end = position + 4 + length
        position += 12
        for _ in columns:
            kind, size = unpack_value(body, position)
            if kind == TEXT:
                position += 5
                append(body[position : (position := position + size)])
            else:
                position += 1
                append(None if kind == NULL else value_without_bytes(kind))
        if position != end:
            raise _misfit(length)
        count += 1
        length, frame_head = unpack_frame(body, position)
    return position, count


def read_updates(
    body: bytes, position: int, head: bytes, new_image: bytes, width: int, old: list[Value], new: list[Value]
) -> tuple[int, int]:
    """Reads Updates with an old image; ``new_image`` is what the new one begins with, after it."""
    append_old, append_new, unpack_frame = old.append, new.append, FRAME.unpack_from
    count = 0
    length, frame_head = unpack_frame(body, position)
    while frame_head == head:
        end = position + 4 + length
        position = _read_image(body, position + 12, width, append_old)
        if body[position : position + 3] != new_image:
            raise _misfit(length)
        position = _read_image(body, position + 3, width, append_new)
        if position != end:
            raise _misfit(length)
        count += 1
        length, frame_head = unpack_frame(body, position)
    return position, count


def _read_image(body: bytes, position: int, width: int, append: Callable[[Value], None]) -> int:
    """Appends one image's values; returns their end. ``read_run`` has the same loop inline: a call a row costs it a tenth."""
    unpack_value = _VALUE.unpack_from
    for _ in range(width):
        kind, size = unpack_value(body, position)
        if kind == TEXT:
            position += 5
            append(body[position : (position := position + size)])
        else:
            position += 1
            append(None if kind == NULL else value_without_bytes(kind))
    return position


def _misfit(length: int) -> WireError:
    return WireError(f"the columns of a row do not fill its frame of {length} bytes exactly")


class TableRows:
    """Rows of one table between two barriers, in flat lists of values, row after row, that ``changes`` slices into
    columns.

    The reader appends values to ``new`` and ``old`` and then calls ``add``. ``old`` stays shorter while no row has an
    old image; ``align_old`` makes it as long as ``new`` before the next one is appended. Instead of appending, the
    reader may ``defer`` frames while all of them have one shape; nothing is in ``new`` then. Once one frame is
    deferred, others of its shape may also go into ``deferrals``.
    """

    __slots__ = (
        "_change_indexes",
        "_deferrals",
        "_deferred",
        "_deferred_lengths",
        "_deferred_shape",
        "_old_kinds",
        "_operations",
        "_table",
        "new",
        "new_image",
        "old",
        "width",
    )

    def __init__(self, table: Table, deferrals: dict[bytes, Deferral]) -> None:
        self._table = table
        self._operations = bytearray()
        self._change_indexes: list[int] = []
        self._old_kinds = bytearray()
        self._deferrals = deferrals
        self._deferred_shape: RowShape | None = None
        self._deferred: list[bytes] = []
        self._deferred_lengths: list[int] = []
        self.width = len(table.columns)
        self.new_image = Struct(">BH").pack(NEW_ROW, self.width)
        self.new: list[Value] = []
        self.old: list[Value] = []

    def align_old(self) -> None:
        missing = len(self._operations) - len(self._old_kinds)
        self._old_kinds += bytes(missing)
        self.old += [None] * (missing * self.width)

    def defers(self, shape: RowShape) -> bool:
        """Returns whether frames of the shape may be deferred: there are no others."""
        return self._deferred_shape is shape or not self._change_indexes

    def defer(self, shape: RowShape, frames: bytes, lengths: list[int], first_change: int) -> None:
        """Keeps one run of frames."""
        if self._deferred_shape is None:
            self._deferred_shape = shape
            keep = self._deferred.append, self._deferred_lengths.append, self._change_indexes.append
            self._deferrals[shape.head] = keep
        self._deferred.append(frames)
        self._deferred_lengths += lengths
        self._change_indexes += range(first_change, first_change + len(lengths))

    def read_deferred(self) -> None:
        """Reads what was deferred, if anything, into ``new``."""
        shape, self._deferred_shape = self._deferred_shape, None
        if shape is not None:
            shortest = min(self._deferred_lengths)
            if shortest < _HEAD.size:  # its first eight bytes were those of the others only with what follows it
                raise _misfit(shortest)
            del self._deferrals[shape.head]
            self._operations += shape.operation * len(self._change_indexes)
            for frames in self._deferred:
                read_run(frames + PADDING, 0, shape.head, self.width, self.new)
            self._deferred, self._deferred_lengths = [], []

    def add(self, shape: RowShape, first_change: int, count: int) -> None:
        """Counts ``count`` rows whose values were appended."""
        self._operations += shape.operation * count
        self._change_indexes += range(first_change, first_change + count)
        if shape.old_kind != NO_OLD_ROW:
            self._old_kinds += bytes((shape.old_kind,)) * count

    def changes(self) -> TableChanges:
        new = self._plain_rows() or self._columns()
        has_old = bool(self._old_kinds)
        if has_old:
            self.align_old()
        return TableChanges(
            table=self._table,
            operations=self._operations,
            change_indexes=self._change_indexes,
            new=new,
            old=[self.old[column :: self.width] for column in range(self.width)] if has_old else None,
            old_kinds=self._old_kinds if has_old else None,
        )

    def _plain_rows(self) -> PlainRows | None:
        """Returns None when only few rows were deferred, or one of them is not plain."""
        shape = self._deferred_shape
        if shape is None or len(self._deferred_lengths) < FEWEST_PLAIN_ROWS or self.width == 0:
            return None
        rows = rows_of_frames(b"".join(self._deferred), self._deferred_lengths, self.width)
        if rows is not None:
            self._operations += shape.operation * len(self._change_indexes)
        return rows

    def _columns(self) -> list[list[Value]]:
        self.read_deferred()
        return [self.new[column :: self.width] for column in range(self.width)]


class RowShape(NamedTuple):
    """The common part of frames that begin with ``head``: operation, table, first image and column count.

    ``old_kind`` is the kind of their old image.
    """

    head: bytes
    rows: TableRows
    operation: bytes
    old_kind: int


class MessageParts:
    """The parts of a message, in order. ``shapes`` are the row shapes seen since the last barrier, by their heads; ``deferrals``
    those of them whose frames need not be read yet."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self._described: dict[int, list[Table]] = {}
        for table in tables:
            self._described.setdefault(table.oid, []).append(table)
        self._related: dict[int, Table] = {}
        self._ended: list[Part] = []
        self._rows: dict[int, TableRows] = {}
        self.shapes: dict[bytes, RowShape] = {}
        self.deferrals: dict[bytes, Deferral] = {}

    def relate(self, relation: Relation) -> None:
        """Registers a relation. Another version of a table than before is a barrier. Raises WireError when the
        descriptor and the Relation message of a table disagree."""
        described = self._described.get(relation.oid, ())
        table = next((each for each in described if _relation_of(each) == relation), None)
        if table is None:
            raise WireError(
                f"a message's descriptor does not agree with its Relation message of {relation.schema}.{relation.name}"
            )
        if self._related.setdefault(relation.oid, table) != table:
            self._end_rows()
            self._related[relation.oid] = table

    def shape(self, head: bytes) -> RowShape:
        """Returns the shape of a row frame's first eight bytes; raises WireError when no row of a known table begins
        like that."""
        operation, oid, image, count = _HEAD.unpack(head)
        old_kind = _OLD_KINDS.get((operation, image))
        if old_kind is None:
            raise WireError(f"a row of operation '{chr(operation)}' begins with an image of unknown kind 0x{image:02x}")
        table = self._table(oid)
        if count != len(table.columns):
            raise WireError(f"a row of {table.qualified_name} has {count} columns, its Relation message {len(table.columns)}")
        rows = self._rows.get(oid)
        if rows is None:
            rows = self._rows[oid] = TableRows(table, self.deferrals)
        shape = self.shapes[head] = RowShape(head, rows, head[:1], old_kind)
        return shape

    def truncate(self, truncate: Truncate, change_index: int) -> None:
        """Adds a barrier: what rows follow begin new parts."""
        self._end_rows()
        tables = tuple([self._table(oid) for oid in truncate.relation_oids])
        self._ended.append(Truncation(tables, change_index, truncate.cascade, truncate.restart_identity))

    def define(self, content: bytes, change_index: int) -> None:
        """Adds a barrier for all tables; nothing for a forged message."""
        definition = PublishedDefinition.decode(content)
        if definition is not None:
            self._end_rows()
            self._ended.append(DefinitionChange(definition, change_index))

    def end(self) -> list[Part]:
        self._end_rows()
        return self._ended

    def _end_rows(self) -> None:
        self._ended += [rows.changes() for rows in self._rows.values()]
        self._rows.clear()
        self.shapes.clear()
        self.deferrals.clear()

    def _table(self, oid: int) -> Table:
        table = self._related.get(oid)
        if table is None:
            raise WireError(f"a change of relation {oid} comes before its Relation message")
        return table


def _relation_of(table: Table) -> Relation:
    columns = tuple([RelationColumn(c.identity_key, c.name, c.type_oid, c.typmod) for c in table.columns])
    return Relation(table.oid, table.schema, table.name, table.replica_identity, columns)


class Transactions:
    """The transactions of a message, in order; ``first_ordinal`` is the ordinal of the message's first change."""

    def __init__(self, first_ordinal: int) -> None:
        self._next_first_ordinal = first_ordinal
        self._ended: list[Transaction] = []
        self.is_open = False
        self._commit_lsn = self._committed_at = self._xid = self._first_change = 0

    def check_open(self) -> None:
        if not self.is_open:
            raise WireError("a change is outside a transaction")

    def begin(self, commit_lsn: int, committed_at: int, xid: int, change_index: int) -> None:
        if self.is_open:
            raise WireError("a transaction begins inside another one")
        self.is_open = True
        self._commit_lsn, self._committed_at, self._xid, self._first_change = commit_lsn, committed_at, xid, change_index

    def commit(self, commit_lsn: int, change_index: int) -> None:
        if not self.is_open or self._commit_lsn != commit_lsn:
            raise WireError("a transaction is committed that did not begin")
        self._end(change_index, commits=True)

    def end(self, change_count: int) -> list[Transaction]:
        if self.is_open:
            self._end(change_count, commits=False)
        return self._ended

    def _end(self, end_change: int, *, commits: bool) -> None:
        first_ordinal, self._next_first_ordinal = self._next_first_ordinal, 1
        self.is_open = False
        begins = first_ordinal == 1
        self._ended.append(
            Transaction(
                self._commit_lsn, self._xid, self._committed_at, self._first_change, end_change, first_ordinal, begins, commits
            )
        )
