"""COPY text (manual: COPY, "Text Format"), as the server sends it for ``COPY … TO STDOUT``, and columns of values.

One row per line, columns apart by tabs, ``\\N`` for NULL, and a backslash before what could be mistaken: ``\\\\``, ``\\t``,
``\\n``, ``\\r``, ``\\b``, ``\\f``, ``\\v``. The server writes no other escape, and no end-of-data line in protocol version 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.table import Value

_NULL = b"\\N"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_MEANINGS = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_SPECIAL = re.compile(rb"[\\\t\n\r]")
_LETTERS = {b"\\": rb"\\", b"\t": rb"\t", b"\n": rb"\n", b"\r": rb"\r"}


def decode_rows(data: bytes, width: int) -> list[list[Value]]:
    """The columns of all rows, one list each; raises WireError when a row has not ``width`` columns or an escape is unknown.

    ``data`` holds whole lines. A table without columns has ``width`` 0 and yields no lists, however many lines.
    """
    if data and not data.endswith(b"\n"):
        raise WireError("copied rows end inside a line")
    rows = data.split(b"\n")
    rows.pop()
    if width == 0:
        return []
    fields = data.replace(b"\n", b"\t").split(b"\t")
    fields.pop()
    if len(fields) != len(rows) * width or any(row.count(b"\t") != width - 1 for row in rows):
        raise WireError(f"a copied row does not have {width} columns")
    if b"\\" not in data:
        return [list(fields[column::width]) for column in range(width)]
    return [[_decode_field(field) for field in fields[column::width]] for column in range(width)]


def _decode_field(field: bytes) -> bytes | None:
    if b"\\" not in field:
        return field
    if field == _NULL:
        return None
    if field.endswith(b"\\") and (len(field) - len(field.rstrip(b"\\"))) % 2:
        raise WireError("a copied value ends inside an escape")
    return _ESCAPE.sub(_meaning, field)


def _meaning(escape: re.Match[bytes]) -> bytes:
    meaning = _MEANINGS.get(escape[1])
    if meaning is None:
        raise WireError("a copied value has an escape that COPY does not write")
    return meaning


def encode_columns(columns: Sequence[Sequence[Value]], rows: int) -> bytes:
    """The inverse of ``decode_rows``: the text of ``rows`` rows. No value may be UNCHANGED: a copied row is always whole."""
    if not columns:
        return b"\n" * rows
    lines = list(map(b"\t".join, zip(*map(_encode_column, columns), strict=True)))
    lines.append(b"")
    return b"\n".join(lines)


def _encode_column(column: Sequence[Value]) -> Iterable[bytes]:
    try:
        together = b"".join(column)  # type: ignore[arg-type]
    except TypeError:
        return [_encode_field(value) for value in column]
    return map(_encode_field, column) if _SPECIAL.search(together) else column  # type: ignore[return-value]


def _encode_field(value: Value) -> bytes:
    if value is None:
        return _NULL
    assert isinstance(value, bytes)
    return _SPECIAL.sub(lambda special: _LETTERS[special[0]], value)
