"""Deleted rows of a pipeline, marked by a column: they continue as deletes with only the key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.rows.copy_text import join_lines, split_fields, split_lines
from pgsluice.shared.wire.table import Value

_NULL = rb"\N"


def check_deletes(copied: CopiedRows, writer: object) -> None:
    """Raises TerminalError when a run begins whose rows the sink cannot delete."""
    if copied.begins_run and copied.mark.deletes is not None and not getattr(writer, "takes_deletes", False):
        raise TerminalError(
            f"the pipeline of '{copied.table.qualified_name}' deletes rows, which this sink cannot do with copied rows",
            "apply them by worker postgres or worker search, or leave 'deletes' out of the pipeline",
        )


def split_deleted(copied: CopiedRows) -> list[CopiedRows]:
    """Splits into existing and deleted rows, the latter without columns outside their key. Returns one of both if the
    other has no rows."""
    if copied.mark.deletes is None or not copied.rows:
        return [copied]
    lines = split_lines(bytes(copied.data))
    gone = [row for row, line in enumerate(lines) if copied.mark.is_deleted(copied.table, _values(line))]
    if not gone:
        return [copied]
    numbers, key = set(gone), copied.table.key
    kept = [row for row in range(len(lines)) if row not in numbers]
    keys = [_key_alone(lines[row], key) for row in gone]
    deleted = replace(_chosen(copied, gone, keys), deletes=True)
    return [_chosen(copied, kept, [lines[row] for row in kept]), deleted] if kept else [deleted]


def _values(line: bytes) -> list[Value]:
    """Returns the fields with their escapes, which no boolean has."""
    return [None if field == _NULL else field for field in split_fields(line)]


def _key_alone(line: bytes, key: Sequence[int]) -> bytes:
    fields = split_fields(line)
    return b"\t".join(field if i in key else _NULL for i, field in enumerate(fields))


def _chosen(copied: CopiedRows, rows: Sequence[int], lines: Sequence[bytes]) -> CopiedRows:
    numbers = tuple(map(copied.row_number, rows))
    return replace(copied, rows=len(rows), data=memoryview(join_lines(lines)), numbers=numbers)
