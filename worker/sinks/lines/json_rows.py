"""Rows as JSON objects: many lines at once, put together slot by slot (what is the same in each line, and what is in a
column), or one by one, for changes that carry an old row or lack a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY
from pgsluice.shared.rows.changes import DELETE, UPDATE, TableChanges
from pgsluice.shared.wire.table import UNCHANGED, Table, Unchanged, Value
from pgsluice.worker.sinks.lines.json_values import KINDS, NULL, JsonColumn, Kinds, json_column

Row = dict[str, Any]


def old_rows(changes: TableChanges, kinds: Kinds = KINDS) -> Sequence[Row | None]:
    """Per row its old image as far as it was sent, None when it was not."""
    if changes.old is None or changes.old_kinds is None:
        return [None] * len(changes)
    table = changes.table
    names = [column.name for column in table.columns]
    identity = [column.name for column in table.columns if column.identity_key]
    rows: list[Row | None] = []
    for kind, row in zip(changes.old_kinds, _rows(names, _typed_columns(table, changes.old, kinds), len(changes)), strict=True):
        if kind == NO_OLD_ROW:
            rows.append(None)
        else:
            kept = identity if kind == OLD_KEY else names
            rows.append({name: row[name] for name in kept if row[name] is not UNCHANGED})
    return rows


def new_rows(
    changes: TableChanges, befores: Sequence[Row | None], kinds: Kinds = KINDS
) -> tuple[Sequence[Row | None], dict[int, list[str]]]:
    """Per row its new image (None for a DELETE), and the names of unknown columns of those rows that have any."""
    names = [column.name for column in changes.table.columns]
    rows: list[Row | None] = list(_rows(names, _typed_columns(changes.table, changes.new, kinds), len(changes)))
    if DELETE in changes.operations:
        for row, operation in enumerate(changes.operations):
            if operation == DELETE:
                rows[row] = None
    unchanged: dict[int, list[str]] = {}
    for row in _rows_with_unchanged(changes):
        unknown = _take_from_old(rows[row], befores[row])
        if unknown:
            unchanged[row] = unknown
    return rows, unchanged


def _rows(names: list[str], columns: list[list[Any]], count: int) -> list[Row]:
    if not names:
        return [{} for _ in range(count)]
    return [dict(zip(names, values)) for values in zip(*columns)]  # noqa: B905  strict takes a tenth of the whole module's time


def _rows_with_unchanged(changes: TableChanges) -> set[int]:
    if UPDATE not in changes.operations:
        return set()
    columns = [column for column in changes.new if Unchanged in set(map(type, column))]
    return {
        row for column in columns for row, value in enumerate(column) if value is UNCHANGED and changes.operations[row] == UPDATE
    }


def _take_from_old(after: Row | None, before: Row | None) -> list[str]:
    """Fills the unchanged columns of ``after`` from ``before``; removes those that it does not hold and returns their names."""
    assert after is not None
    unknown = []
    for name in [name for name, value in after.items() if value is UNCHANGED]:
        if before is not None and name in before:
            after[name] = before[name]
        else:
            del after[name]
            unknown.append(name)
    return unknown


def _typed_columns(table: Table, columns: Sequence[Sequence[Value]], kinds: Kinds) -> list[list[Any]]:
    """``columns`` with what stands in the JSON for each value; NULL and UNCHANGED stay themselves."""
    typed = []
    for column, values in zip(table.columns, columns, strict=True):
        sent = [value for value in values if value.__class__ is bytes]
        texts = map(orjson.Fragment, json_column(table, column, sent, kinds).whole())
        typed.append([next(texts) if value.__class__ is bytes else value for value in values])
    return typed


Slot = bytes | Sequence[bytes]
"""The same for every row, or one text for each."""


def whole_columns(table: Table, columns: Iterable[Sequence[Value]], kinds: Kinds = KINDS) -> list[JsonColumn] | None:
    """None when a value was not sent: such rows are told one by one."""
    whole = []
    for column, values in zip(table.columns, columns, strict=True):
        sent = [value for value in values if value.__class__ is bytes]
        texts = json_column(table, column, sent, kinds)
        if len(sent) < len(values):
            if UNCHANGED in values:
                return None
            present = iter(texts.whole())
            texts = JsonColumn([NULL if value is None else next(present) for value in values], b"")
        whole.append(texts)
    return whole


def row_slots(table: Table, columns: Sequence[JsonColumn]) -> Iterator[Slot]:
    """What a line says between its operation and its transaction, of rows without an old image."""
    yield b',"schema":' + orjson.dumps(table.schema) + b',"table":' + orjson.dumps(table.name) + b',"key":'
    if table.key:
        yield from object_slots(table, columns, table.key)
    else:
        yield NULL
    yield b',"before":null,"after":'
    yield from object_slots(table, columns, range(len(columns)))
    yield b","


def object_slots(table: Table, columns: Sequence[JsonColumn], indexes: Iterable[int]) -> Iterator[Slot]:
    """An object of these columns."""
    before = b"{"
    for index in indexes:
        texts, quote = columns[index]
        yield before + orjson.dumps(table.columns[index].name) + b":" + quote
        yield texts
        yield quote
        before = b","
    yield b"}" if before == b"," else b"{}"


def lines_of_slots(slots: Iterable[Slot], count: int) -> list[bytes]:
    """``count`` lines; the last slot ends in a line feed, and no other holds one."""
    merged: list[Slot] = []
    for slot in slots:
        if isinstance(slot, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += slot
        else:
            merged.append(slot)
    width = len(merged)
    texts = [b""] * (width * count)
    for index, slot in enumerate(merged):
        texts[index::width] = [slot] * count if isinstance(slot, bytes) else slot
    return b"".join(texts).splitlines(keepends=True)
