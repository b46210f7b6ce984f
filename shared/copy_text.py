"""Decoding COPY text (manual: COPY, "Text Format"): what the server sends for ``COPY … TO STDOUT`` into columns of values.

One row per line, columns apart by tabs, ``\\N`` for NULL, and a backslash before what could be mistaken: ``\\\\``, ``\\t``,
``\\n``, ``\\r``, ``\\b``, ``\\f``, ``\\v``. The server writes no other escape, and no end-of-data line in protocol version 3.
"""

from __future__ import annotations

import re

from shared.errors import WireError
from shared.table import Value

_NULL = b"\\N"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_MEANINGS = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


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
