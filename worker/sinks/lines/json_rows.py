"""Rows as JSON objects, made of Postgres text a column at a time.

Most columns need no work per value: numbers are JSON as they are, and text without anything to escape is put between
quotes. So a column is checked as a whole first. Then many lines are put together at once, slot by slot (the constant
parts of each line, and the columns), or one by one, for changes that carry an old row or lack a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY
from pgsluice.shared.rows.changes import DELETE, UPDATE, TableChanges
from pgsluice.shared.wire.table import UNCHANGED, Column, Table, Unchanged, Value

NULL = b"null"


_BOOLEANS = {b"t": b"true", b"f": b"false"}
_LINE_BREAKS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")  # raw ones occur only between JSON tokens: strings must escape them
_ESCAPED = b'"\\' + bytes(range(0x20))
_LAST_DIGIT = ord("9")  # every number ends in a digit; NaN and Infinity end in ASCII characters above the digits
Row = dict[str, Any]
Slot = bytes | Sequence[bytes]
"""A constant for every row, or one text for each."""


class JsonColumn(NamedTuple):
    """The JSON of each value is ``quote + text + quote``."""

    texts: Sequence[bytes]
    quote: bytes

    def whole(self) -> Iterable[bytes]:
        """Returns each text with its quotes."""
        return (b'"%b"' % text for text in self.texts) if self.quote else self.texts


Kinds = Mapping[int, Callable[[Sequence[bytes]], JsonColumn]]
"""Converters of a type's values to JSON, by type OID (pg_type.dat); ``strings`` converts all others. Raises ValueError
or KeyError for a value that is not of the type."""


def json_column(table: Table, column: Column, values: Sequence[bytes], kinds: Kinds) -> JsonColumn:
    """``values`` are of ``column``, without NULL and UNCHANGED. Raises WireError for a value that is not of the
    column's type."""
    try:
        return kinds.get(column.type_oid, strings)(values)
    except UnicodeDecodeError:
        raise WireError(
            f"a value of {table.qualified_name}.{column.name} is not UTF-8",
            "a source database with encoding SQL_ASCII does not check its text: correct the row, or move to UTF8",
        ) from None
    except (KeyError, ValueError):
        raise WireError(f"a value of {table.qualified_name}.{column.name} is not of its type {column.type_name}") from None


def integers(values: Sequence[bytes]) -> JsonColumn:
    if b"".join(values).translate(None, b"-0123456789") or b"" in values:
        raise ValueError("not an integer")
    return JsonColumn(values, b"")


def numbers(values: Sequence[bytes]) -> JsonColumn:
    if b"" in values:
        raise ValueError("not a number")
    if not b"".join(values).translate(None, b"+-.0123456789e"):
        return JsonColumn(values, b"")
    return JsonColumn([value if value[-1] <= _LAST_DIGIT else b'"%b"' % value for value in values], b"")


def booleans(values: Sequence[bytes]) -> JsonColumn:
    return JsonColumn([_BOOLEANS[value] for value in values], b"")


def documents(values: Sequence[bytes]) -> JsonColumn:
    _check_utf8(b",".join(values))
    return JsonColumn([value.translate(_LINE_BREAKS_TO_SPACES) for value in values], b"")


def strings(values: Sequence[bytes]) -> JsonColumn:
    joined = b",".join(values)
    _check_utf8(joined)
    if len(joined.translate(None, _ESCAPED)) == len(joined):
        return JsonColumn(values, b'"')
    return JsonColumn([orjson.dumps(value.decode()) for value in values], b"")


def _check_utf8(joined: bytes) -> None:
    """Checks the joined values: the comma between them keeps one value's end and the next one's begin from making a
    character."""
    if not joined.isascii():
        joined.decode()


KINDS: Kinds = {
    16: booleans,
    20: integers,  # int8
    21: integers,  # int2
    23: integers,  # int4
    26: integers,  # oid
    114: documents,  # json
    700: numbers,  # float4
    701: numbers,  # float8
    1700: numbers,  # numeric
    3802: documents,  # jsonb
}
"""Converters of pgsluice's own JSON lines."""


def old_rows(changes: TableChanges, kinds: Kinds = KINDS) -> Sequence[Row | None]:
    """Returns the old image of each row as far as it was sent, None when it was not."""
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
    """Returns the new image of each row (None for a DELETE), and the names of unknown columns of those rows that have
    any."""
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
    """Fills the unchanged columns of ``after`` from ``before``; removes columns that it does not hold and returns their
    names."""
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
    """Returns ``columns`` with the JSON for each value; NULL and UNCHANGED stay themselves."""
    typed = []
    for column, values in zip(table.columns, columns, strict=True):
        sent = [value for value in values if value.__class__ is bytes]
        texts = map(orjson.Fragment, json_column(table, column, sent, kinds).whole())
        typed.append([next(texts) if value.__class__ is bytes else value for value in values])
    return typed


def whole_columns(table: Table, columns: Iterable[Sequence[Value]], kinds: Kinds = KINDS) -> list[JsonColumn] | None:
    """Returns None when a value was not sent: such rows are encoded one by one."""
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


def row_slots(table: Table, columns: Sequence[JsonColumn], ids: bytes | None = None) -> Iterator[Slot]:
    """Yields the parts of lines between operation and transaction, for rows without an old image. ``ids`` are the
    columns' numbers, as JSON."""
    yield b',"schema":' + orjson.dumps(table.schema) + b',"table":' + orjson.dumps(table.name)
    yield b',"key":' if ids is None else b',"columns":' + ids + b',"key":'
    if table.key:
        yield from object_slots(table, columns, table.key)
    else:
        yield NULL
    yield b',"before":null,"after":'
    yield from object_slots(table, columns, range(len(columns)))
    yield b","


def object_slots(table: Table, columns: Sequence[JsonColumn], indexes: Sequence[int]) -> Iterator[Slot]:
    """Yields an object of these columns."""
    if not indexes:
        yield b"{}"
        return
    yield from _fields(table, columns, indexes)
    yield b"}"


def object_fields(table: Table, columns: Sequence[JsonColumn], indexes: Sequence[int]) -> Iterator[Slot]:
    """Yields the beginning of an object with these columns; the next field follows at once."""
    if not indexes:
        yield b"{"
        return
    yield from _fields(table, columns, indexes)
    yield b","


def _fields(table: Table, columns: Sequence[JsonColumn], indexes: Iterable[int]) -> Iterator[Slot]:
    before = b"{"
    for index in indexes:
        texts, quote = columns[index]
        yield before + orjson.dumps(table.columns[index].name) + b":" + quote
        yield texts
        yield quote
        before = b","


def lines_of_slots(slots: Iterable[Slot], count: int) -> list[bytes]:
    """Returns ``count`` lines; the last slot ends in a line feed, and no other holds one."""
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
