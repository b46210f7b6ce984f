"""Copied rows as changes: what a sink that cannot take COPY text as it is makes of them."""

from __future__ import annotations

from shared.changes import INSERT, CopiedRows, TableChanges
from shared.copy_text import decode_rows


def as_changes(copied: CopiedRows) -> TableChanges:
    """All rows as inserts, in order; ``change_indexes`` count the rows of their message. Raises WireError when they are not
    COPY text of that table."""
    columns = decode_rows(bytes(copied.data), len(copied.table.columns))
    numbers = list(map(copied.row_number, range(copied.rows)))
    return TableChanges(copied.table, bytearray([INSERT]) * copied.rows, numbers, columns)
