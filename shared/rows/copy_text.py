"""COPY text (manual: COPY, "Text Format"): its lines, its fields, its escapes.

One row per line, a tab between fields, ``\\N`` for NULL, and a backslash before what would be mistaken otherwise. A
server writes ``\\\\``, ``\\t``, ``\\n``, ``\\r``, ``\\b``, ``\\f``, ``\\v``, no other escape, and no end-of-data line
in protocol version 3. A server that reads needs the first four only; these are what is written here.

Values are Postgres text already, so most rows only need joining. Whether a value needs an escape is asked of all rows
at once: after joining, the number of separators must match the shape, and there must be no backslash and no carriage
return.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.table import UNCHANGED, Value

NULL_FIELD = b"\\N"

_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_MEANINGS = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def split_lines(text: bytes) -> list[bytes]:
    """Returns the rows of ``text``, which are whole lines, without the line feeds."""
    lines = text.split(b"\n")
    lines.pop()
    return lines


def join_lines(lines: Iterable[bytes]) -> bytes:
    """Joins lines: the inverse of ``split_lines``."""
    return b"\n".join([*lines, b""])


def split_fields(line: bytes) -> list[bytes]:
    """Returns the fields of one row, as they are: with their escapes. A row without columns has one empty field."""
    return line.split(b"\t")


def join_fields(fields: Iterable[bytes]) -> bytes:
    """Joins fields: the inverse of ``split_fields``."""
    return b"\t".join(fields)


def fields_of_rows(text: bytes) -> list[bytes]:
    """Returns the fields of all rows one after the other. Splitting all at once is much cheaper than row by row."""
    fields = text.replace(b"\n", b"\t").split(b"\t")
    fields.pop()
    return fields


def decode_rows(data: bytes, width: int) -> list[list[Value]]:
    """Returns the columns of all rows, one list each; raises WireError when a row has not ``width`` columns or an
    escape is unknown.

    ``data`` holds whole lines. A table without columns has ``width`` 0 and yields no lists, however many lines.
    """
    if data and not data.endswith(b"\n"):
        raise WireError("copied rows end inside a line")
    if width == 0:
        return []
    rows, fields = split_lines(data), fields_of_rows(data)
    if len(fields) != len(rows) * width or any(row.count(b"\t") != width - 1 for row in rows):
        raise WireError(f"a copied row does not have {width} columns")
    if b"\\" not in data:
        return [list(fields[column::width]) for column in range(width)]
    return [[_decode_field(field) for field in fields[column::width]] for column in range(width)]


def _decode_field(field: bytes) -> bytes | None:
    if b"\\" not in field:
        return field
    if field == NULL_FIELD:
        return None
    if field.endswith(b"\\") and (len(field) - len(field.rstrip(b"\\"))) % 2:
        raise WireError("a copied value ends inside an escape")
    return _ESCAPE.sub(_meaning, field)


def _meaning(escape: re.Match[bytes]) -> bytes:
    meaning = _MEANINGS.get(escape[1])
    if meaning is None:
        raise WireError("a copied value has an escape that COPY does not write")
    return meaning


def encode_rows(rows: Sequence[Sequence[Value]]) -> bytes:
    """Encodes ``rows``, all of the same width of at least one. UNCHANGED is written as NULL: a caller that needs the
    difference sends it separately."""
    if not rows:
        return b""
    joined = _joined(rows)
    if joined is not None and _is_plain(joined, len(rows), len(rows[0])):
        return joined
    return _encode_each(zip(*rows, strict=True))


def encode_columns(columns: Sequence[Sequence[Value]], rows: int) -> bytes:
    """Encodes ``rows`` rows given as columns; the inverse of ``decode_rows``. A table may have no columns: then a row
    is an empty line."""
    if not columns:
        return b"\n" * rows
    joined = _joined(zip(*columns, strict=True))
    if joined is not None and _is_plain(joined, len(columns[0]), len(columns)):
        return joined
    return _encode_each(columns)


def plain_fields(values: Sequence[Value]) -> Sequence[bytes] | None:
    """Returns the fields of one column, ``values`` themselves when none is NULL; None when a value is UNCHANGED or
    needs an escape."""
    present, together = _present(values)
    if _needs_escape(together):
        return None
    if len(present) == len(values):
        return present
    return None if UNCHANGED in values else _with_nulls(values)


def _joined(rows: Iterable[Iterable[Any]]) -> bytes | None:
    """Returns the rows without any escaping; None when one of them holds NULL or UNCHANGED."""
    try:
        return join_lines(map(b"\t".join, rows))
    except TypeError:
        return None


def _is_plain(text: bytes, rows: int, columns: int) -> bool:
    return b"\\" not in text and b"\r" not in text and text.count(b"\t") == rows * (columns - 1) and text.count(b"\n") == rows


def _encode_each(columns: Iterable[Sequence[Value]]) -> bytes:
    text = _joined(zip(*map(_encode_column, columns), strict=True))
    assert text is not None
    return text


def _encode_column(column: Sequence[Value]) -> Sequence[bytes]:
    present, together = _present(column)
    if _needs_escape(together):
        return [_escape(value) if isinstance(value, bytes) else NULL_FIELD for value in column]
    return present if len(present) == len(column) else _with_nulls(column)


def _present(values: Sequence[Value]) -> tuple[Sequence[bytes], bytes]:
    """Returns the ``values`` that are text, and all their text together."""
    try:
        return cast("Sequence[bytes]", values), b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        present = [value for value in values if isinstance(value, bytes)]
        return present, b"".join(present)


def _with_nulls(values: Sequence[Value]) -> list[bytes]:
    return [value if isinstance(value, bytes) else NULL_FIELD for value in values]


def _needs_escape(text: bytes) -> bool:
    return b"\\" in text or b"\t" in text or b"\n" in text or b"\r" in text


def _escape(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
