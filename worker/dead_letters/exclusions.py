"""Which rows a worker does not apply: those with dead letters, from the first of them on. Pure.

A row is known by its table at the source, whatever that is called, and by the values of its key there (of all its columns, in a
table without a key), as they were before any rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_ROW
from pgsluice.shared.rows.changes import DELETE, DefinitionChange, MessageChanges, TableChanges, Truncation
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import UNCHANGED, Table, Value


class TableKey(NamedTuple):
    """A table of the source, and the columns that its rows are known by: all of them, in a table without a key. Without columns
    it stands for the table as a whole."""

    oid: int
    columns: tuple[str, ...]


RowKey = tuple[Value, ...]
Row = tuple[TableKey, RowKey]


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What the tasks of a batch leave out. Picklable.

    ``rejected`` has the reasons of changes that are dead letters, or will be, for what they are. ``blocked`` says from which
    position on the changes of a row go behind its first letter. ``room`` is how many letters more there may be.
    """

    rejected: Mapping[Position, str]
    blocked: Mapping[TableKey, Mapping[RowKey, Position]]
    room: int


def table_key(table: Table) -> TableKey:
    return TableKey(table.oid, tuple(table.columns[i].name for i in _key_columns(table)))


def whole_table(table: Table) -> Row:
    """What a truncation touches. Rows are known otherwise, so all later changes of the table wait for it."""
    return TableKey(table.oid, ()), ()


def _key_columns(table: Table) -> Sequence[int]:
    return table.key or tuple(range(len(table.columns)))


def row_keys(changes: TableChanges) -> Iterator[tuple[RowKey, RowKey]]:
    """The keys that each change touches: before and after, the same one twice where there is no difference."""
    columns = _key_columns(changes.table)
    new = list(zip(*(changes.new[i] for i in columns), strict=True))
    if changes.old is None or changes.old_kinds is None:
        return ((key, key) for key in new)
    old = list(zip(*(changes.old[i] for i in columns), strict=True))
    return _both(changes, new, old)


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
    """All rows that the message's changes touch; some more than once."""
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
                pass  # no letter holds one
            case unreachable:
                assert_never(unreachable)
