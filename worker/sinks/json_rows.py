"""Lines of many rows at once, put together slot by slot: what is the same in each line, and what is in a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import orjson

from shared.table import UNCHANGED, Table, Value
from worker.sinks.json_values import KINDS, NULL, JsonColumn, Kinds, json_column

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
