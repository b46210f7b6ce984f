"""Rows whose bytes are not UTF-8, which all code that reads a value relies on.

Only a source database of encoding SQL_ASCII can send them: it accepts any bytes, and the server converts nothing. Its
rows are checked before rules and sinks see them; rows of others are not, because their server has checked every value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from pgsluice.rules.rule import RejectedRow
from pgsluice.shared.rows.changes import CopiedRows, DefinitionChange, MessageChanges, TableChanges, Truncation
from pgsluice.shared.rows.copy_text import split_fields, split_lines
from pgsluice.shared.wire.table import Table, Value

_CHECK = "the source's encoding"


def unreadable_changes(message: MessageChanges) -> list[RejectedRow]:
    """Returns the changes whose old or new row holds a value that is not UTF-8."""
    found: dict[int, str] = {}
    for part in message.parts:
        match part:
            case TableChanges():
                for image in (part.new, part.old or ()):
                    for row, column in _unreadable(part.table, image):
                        found.setdefault(part.change_indexes[row], column)
            case Truncation() | DefinitionChange():
                pass  # holds no value of a row
            case unreachable:
                assert_never(unreachable)
    return [RejectedRow(index, _CHECK, _reason(column)) for index, column in sorted(found.items())]


def unreadable_copied(copied: CopiedRows) -> list[RejectedRow]:
    """Returns the unreadable copied rows, by their number in the message."""
    data = bytes(copied.data)
    if _is_readable(data):
        return []
    return [
        RejectedRow(copied.row_number(row), _CHECK, _reason(_column_of(copied.table, split_fields(line))))
        for row, line in enumerate(split_lines(data))
        if not _is_readable(line)
    ]


def _unreadable(table: Table, columns: Sequence[Sequence[Value]]) -> Iterator[tuple[int, str]]:
    for column, values in zip(table.columns, columns, strict=False):
        # What one value begins and the next one ends is no character, because of the comma between them.
        if not _is_readable(b",".join(value for value in values if isinstance(value, bytes))):
            for row, value in enumerate(values):
                if isinstance(value, bytes) and not _is_readable(value):
                    yield row, column.name


def _column_of(table: Table, fields: Sequence[bytes]) -> str:
    return next(column.name for column, field in zip(table.columns, fields, strict=True) if not _is_readable(field))


def _reason(column: str) -> str:
    return f"a value of column '{column}' is not UTF-8; correct the row at the source, then discard this dead letter"


def _is_readable(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
