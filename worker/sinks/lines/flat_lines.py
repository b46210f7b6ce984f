"""Changes as flat JSON lines: the row's columns themselves, with the facts about the change.

    {"id": 7, "total": 12.50, "_operation": "UPDATE", "_schema": "public", "_table": "orders",
     "_position": "16/B374D848:3", "_xid": 731, "_committed_at": "2026-01-31T09:15:00.123456Z"}

The names with an underscore are those of the file sink's Parquet columns. An INSERT or UPDATE has the new row, a DELETE
as much of the old one as was sent. ``_before`` is an UPDATE's old row as far as it was sent, ``_unchanged`` names the
columns that are left out because the server did not send them; each is present only when it is not empty. A copied row
has the operation READ, and ``_snapshot`` in place of the last three. TRUNCATE, RESTART and DDL have no columns; a
definition is in ``_definition``.

Values are as in ``json_lines``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import assert_never

import orjson

from pgsluice.shared.errors import TerminalError
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
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.lines.definition_fields import concerned_name, definition_fields
from pgsluice.worker.sinks.lines.json_lines import Stamps, as_changes
from pgsluice.worker.sinks.lines.json_rows import (
    Row,
    Slot,
    lines_of_slots,
    new_rows,
    object_fields,
    old_rows,
    whole_columns,
)
from pgsluice.worker.sinks.lines.schemas.flat_forms import FLAT_NAMES

_OPERATIONS = {INSERT: b"INSERT", UPDATE: b"UPDATE", DELETE: b"DELETE"}


def encode_lines(message: MessageChanges) -> list[bytes]:
    """Like ``json_lines.encode_lines``. Raises TerminalError for a table with a column of a name that is used here."""
    stamps = Stamps(message)
    ends = [
        b',"_position":%b,"_xid":%d,"_committed_at":"%b"}\n' % (position, xid, at.encode())
        for position, xid, at in zip(stamps.positions, stamps.xids, stamps.committed_at, strict=True)
    ]
    lines = [b""] * message.change_count
    for part in message.parts:
        match part:
            case TableChanges():
                for index, line in zip(part.change_indexes, _table_lines(part, ends), strict=True):
                    lines[index] += line
            case Truncation():
                end = ends[part.change_index]
                lines[part.change_index] += b"".join(_lone_line(b"TRUNCATE", table) + end for table in part.tables)
            case DefinitionChange():
                schema, name = concerned_name(part.definition)
                said = {"_operation": "DDL", "_schema": schema, "_table": name, "_definition": definition_fields(part.definition)}
                lines[part.change_index] += orjson.dumps(said)[:-1] + ends[part.change_index]
            case unreachable:
                assert_never(unreachable)
    return [line for line in lines if line]


def encode_copied(copied: CopiedRows) -> list[bytes]:
    """Like ``json_lines.encode_copied``."""
    tail = b',"_snapshot":%b}\n' % orjson.dumps(copied.snapshot)
    if copied.restarts:
        return [_lone_line(b"RESTART", copied.table) + tail]
    columns = whole_columns(copied.table, as_changes(copied).new)
    assert columns is not None, "a copied row has every value"
    named = b'"_operation":"READ"' + _named(copied.table)
    return lines_of_slots([*object_fields(copied.table, columns, range(len(columns))), named, tail], copied.rows)


def _table_lines(changes: TableChanges, ends: list[bytes]) -> Iterator[bytes]:
    whole = whole_columns(changes.table, changes.new) if changes.old is None else None
    if whole is None:
        return _lines_one_by_one(changes, ends)
    named = _named(changes.table)
    slots: list[Slot] = [
        *object_fields(changes.table, whole, range(len(whole))),
        b'"_operation":"',
        [_OPERATIONS[operation] for operation in changes.operations],
        b'"' + named,
        [ends[index] for index in changes.change_indexes],
    ]
    return iter(lines_of_slots(slots, len(changes)))


def _lines_one_by_one(changes: TableChanges, ends: list[bytes]) -> Iterator[bytes]:
    named = _named(changes.table)
    befores = old_rows(changes)
    afters, unchanged = new_rows(changes, befores)
    for row, (index, operation) in enumerate(zip(changes.change_indexes, changes.operations, strict=True)):
        before, after = befores[row], afters[row]
        fields: Row = (before if after is None else after) or {}
        body = orjson.dumps(fields)[:-1]
        more: Row = {}
        if after is not None and before is not None:
            more["_before"] = before
        if row in unchanged:
            more["_unchanged"] = unchanged[row]
        said = b"," + orjson.dumps(more)[1:-1] if more else b""
        comma = b"," if fields else b""
        yield b"".join((body, comma, b'"_operation":"', _OPERATIONS[operation], b'"', named, said, ends[index]))


def _lone_line(operation: bytes, table: Table) -> bytes:
    return b'{"_operation":"%b"' % operation + _named(table)


@lru_cache(maxsize=1024)
def _named(table: Table) -> bytes:
    taken = [column.name for column in table.columns if column.name in FLAT_NAMES]
    if taken:
        raise TerminalError(
            f"column {taken[0]} of {table.qualified_name} has a name that row-layout: flat uses itself",
            "write row-layout: envelope, or rename the column by a route",
        )
    return b"," + orjson.dumps({"_schema": table.schema, "_table": table.name})[1:-1]
