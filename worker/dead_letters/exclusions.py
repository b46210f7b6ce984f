"""The rows that a worker does not apply: rows with dead letters, from the first of them on. Pure.

A row is known by its table at the source, whatever that is called, and by the values of its key there (of all its
columns, in a table without a key), as they were before any rule. Values of built-in types and of ``citext`` are the
same when PostgreSQL takes them for equal, however they are written: the numeric ``1.0`` may be deleted and come back as
``1.00``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from pgsluice.rules.orderings import is_citext, ordering_of
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_ROW
from pgsluice.shared.rows.changes import DELETE, DefinitionChange, MessageChanges, TableChanges, Truncation
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import UNCHANGED, Column, Table, Value


class TableKey(NamedTuple):
    """A table of the source, and the columns that its rows are known by, with the types that determine the spelling of
    their values: all columns, in a table without a key. Without columns it means the table as a whole."""

    oid: int
    columns: tuple[tuple[str, int], ...]


_WRITTEN_IN_SEVERAL_WAYS = frozenset({700, 701, 1042, 1186, 1700})
"""The oids of real, double precision, char(n), interval and numeric."""

_WRITTEN_ALIKE = {21: 20, 23: 20, 1043: 25}
"""Maps the oids of smallint, integer and varchar to bigint's and text's: a column that becomes the other keeps its
texts."""

RowKey = tuple[Hashable, ...]
Row = tuple[TableKey, RowKey]


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The changes that the tasks of a batch leave out. Picklable.

    ``rejected`` has the reasons of changes that are rejected themselves. ``blocked`` is the position from which on the
    changes of a row wait for its first dead letter. ``room`` is how many more dead letters are allowed.
    """

    rejected: Mapping[Position, str]
    blocked: Mapping[TableKey, Mapping[RowKey, Position]]
    room: int


def table_key(table: Table) -> TableKey:
    columns = [table.columns[i] for i in _key_columns(table)]
    return TableKey(table.oid, tuple((each.name, _WRITTEN_ALIKE.get(each.type_oid, each.type_oid)) for each in columns))


def whole_table(table: Table) -> Row:
    """Returns the row that a truncation touches. Rows are known otherwise, so all later changes of the table wait for
    it."""
    return TableKey(table.oid, ()), ()


def _key_columns(table: Table) -> Sequence[int]:
    return table.key or tuple(range(len(table.columns)))


def row_keys(changes: TableChanges) -> Iterator[tuple[RowKey, RowKey]]:
    """Yields the keys that each change touches: before and after, the same one twice where there is no difference."""
    new = _keys(changes.table, changes.new)
    if changes.old is None or changes.old_kinds is None:
        return ((key, key) for key in new)
    return _both(changes, new, _keys(changes.table, changes.old))


def _keys(table: Table, values: Sequence[Sequence[Value]]) -> list[RowKey]:
    return list(zip(*(_comparable(table.columns[i], values[i]) for i in _key_columns(table)), strict=True))


def _comparable(column: Column, values: Sequence[Value]) -> Sequence[Hashable]:
    if column.type_oid not in _WRITTEN_IN_SEVERAL_WAYS and not is_citext(column):
        return values
    ordering = ordering_of(column)
    assert ordering is not None, "values of these types can be compared"
    return [next(iter(ordering.keys([value]))) if isinstance(value, bytes) else value for value in values]


def _both(changes: TableChanges, new: Sequence[RowKey], old: Sequence[RowKey]) -> Iterator[tuple[RowKey, RowKey]]:
    assert changes.old_kinds is not None
    columns = _key_columns(changes.table)
    sent = tuple(changes.table.columns[i].identity_key for i in columns)
    for row, kind in enumerate(changes.old_kinds):
        if kind == NO_OLD_ROW:
            yield new[row], new[row]
            continue
        is_whole = kind == OLD_ROW or all(sent)
        before = old[row] if is_whole else new[row]
        after = before if changes.operations[row] == DELETE else new[row]
        yield before, tuple(b if a is UNCHANGED else a for a, b in zip(after, before, strict=True))


def touched_rows(message: MessageChanges) -> Iterator[Row]:
    """Yields all rows that the message's changes touch; some more than once."""
    for part in message.parts:
        match part:
            case TableChanges():
                table = table_key(part.table)
                for before, after in row_keys(part):
                    yield table, before
                    yield table, after
            case Truncation():
                yield from map(whole_table, part.tables)
            case DefinitionChange():
                pass  # no dead letter holds one
            case unreachable:
                assert_never(unreachable)
