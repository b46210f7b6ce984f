"""Rows of a message as Python values, one after the other, for a sink that wants no columns of text.

A column's type determines its values: bool, int, float, Decimal, date, datetime (with UTC for timestamptz, else without
a zone), bytes, lists of these, None for NULL. Everything else is the server's text, and so is a value that its type
cannot hold: an infinite time, a year before 1 or after 9999, an array of several dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple, assert_never

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY
from pgsluice.shared.rows.changes import DELETE, INSERT, CopiedRows, DefinitionChange, MessageChanges, TableChanges, Truncation
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import UNCHANGED, Column, Table, Value
from pgsluice.worker.data_source.typed_columns import arrow_type, fitting_column
from pgsluice.worker.sinks.lines.json_lines import as_changes

_NUMERIC = 1700

TypedRow = dict[str, Any]
"""Values by the columns' names, without unsent ones."""


class RowChange(NamedTuple):
    """``operation`` is INSERT, UPDATE or DELETE. ``new`` is None for a DELETE; ``old`` is the old row as far as it was
    sent, else None. ``position`` is None for a row that a copy read."""

    position: Position | None
    operation: int
    table: Table
    new: TypedRow | None
    old: TypedRow | None

    @property
    def key(self) -> TypedRow:
        """The row's key from here on, or until here when it is deleted. Empty if the table has no key."""
        return self._key_of((self.old or {}) if self.new is None else self.new)

    @property
    def key_before(self) -> TypedRow:
        """The row's key before the change; another one than ``key`` when an update changed it."""
        return self.key | self._key_of(self.old or {})

    def _key_of(self, row: TypedRow) -> TypedRow:
        names = [self.table.columns[index].name for index in self.table.key]
        return {name: row[name] for name in names if name in row}


def row_changes(message: MessageChanges | CopiedRows) -> list[RowChange | Truncation]:
    """Returns the changes of a message in commit order, without definitions. Copied rows are inserts; a Truncation
    comes where their table is copied again, since what was copied of it before does not count. Raises WireError for a
    value that is not of its type."""
    if isinstance(message, CopiedRows):
        return _copied(message)
    positions = [each.position(index) for each in message.transactions for index in range(each.first_change, each.end_change)]
    placed: list[tuple[int, RowChange | Truncation]] = []
    for part in message.parts:
        match part:
            case TableChanges():
                placed += zip(part.change_indexes, _changes(part, positions), strict=True)
            case Truncation():
                placed.append((part.change_index, part))
            case DefinitionChange():
                pass  # apply_ddl gets it
            case unreachable:
                assert_never(unreachable)
    return [change for _, change in sorted(placed, key=lambda each: each[0])]


def _copied(copied: CopiedRows) -> list[RowChange | Truncation]:
    if copied.restarts:
        return [Truncation((copied.table,), 0, cascade=False, restart_identity=False)]
    if not copied.rows:
        return []
    rows = _rows(copied.table, as_changes(copied).new, copied.rows)
    return [RowChange(None, INSERT, copied.table, row, None) for row in rows]


def _changes(part: TableChanges, positions: Sequence[Position]) -> list[RowChange]:
    count = len(part)
    kinds = bytes([NO_OLD_ROW]) * count if part.old_kinds is None else part.old_kinds
    old = [{}] * count if part.old is None else _rows(part.table, part.old, count)
    new = _rows(part.table, part.new, count)
    identity = {column.name for column in part.table.columns if column.identity_key}
    changes = []
    for row, (index, operation, kind) in enumerate(zip(part.change_indexes, part.operations, kinds, strict=True)):
        sent = None if kind == NO_OLD_ROW else old[row]
        if sent is not None and kind == OLD_KEY:
            sent = {name: value for name, value in sent.items() if name in identity}
        now = None if operation == DELETE else _filled(part.table, new[row], sent or {})
        changes.append(RowChange(positions[index], operation, part.table, now, sent))
    return changes


def _filled(table: Table, row: TypedRow, old: TypedRow) -> TypedRow:
    """Returns the row completed by old values of unsent columns, in the columns' sequence."""
    names = (column.name for column in table.columns)
    return {name: row[name] if name in row else old[name] for name in names if name in row or name in old}


def _rows(table: Table, columns: Sequence[Sequence[Value]], count: int) -> list[TypedRow]:
    rows: list[TypedRow] = [{} for _ in range(count)]
    for column, values in zip(table.columns, columns, strict=True):
        sent = [row for row, value in enumerate(values) if value is not UNCHANGED]
        typed = _typed(table, column, [value for value in values if value is not UNCHANGED])
        for row, value in zip(sent, typed, strict=True):
            rows[row][column.name] = value
    return rows


def _typed(table: Table, column: Column, values: Sequence[bytes | None]) -> list[Any]:
    try:
        if column.type_oid == _NUMERIC:
            return [None if value is None else Decimal(value.decode("ascii")) for value in values]
        typed, misfits = fitting_column(values, arrow_type(column))
        found: list[Any] = typed.to_pylist()
        for place in misfits:
            text = values[place]
            found[place] = None if text is None else text.decode()
        return found
    except (ValueError, ArithmeticError):
        raise WireError(f"a value of {table.qualified_name}.{column.name} is not of its type {column.type_name}") from None
