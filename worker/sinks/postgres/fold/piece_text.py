"""Rows as COPY text (manual: COPY, "Text Format"): tab between columns, newline after each row, NULL as ``\\N``.

Values are Postgres text already, so most rows only need joining. Whether a value needs escaping is asked of all rows at once:
after joining, the separators must be as many as the shape says, and there must be no backslash and no carriage return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pgsluice.shared.wire.table import Value

_NULL = b"\\N"


def encode_rows(rows: Sequence[Sequence[Value]]) -> bytes:
    """``rows``, all of the same width of at least one. UNCHANGED is written as NULL: who needs the difference sends it beside."""
    if not rows:
        return b""
    joined = _joined(rows)
    if joined is not None and _is_plain(joined, len(rows), len(rows[0])):
        return joined
    return _encode_each(zip(*rows, strict=True))


def encode_columns(columns: Sequence[Sequence[Value]], rows: int) -> bytes:
    """``rows`` rows, given as columns. A table may have none: then a row is an empty line."""
    if not columns:
        return b"\n" * rows
    joined = _joined(zip(*columns, strict=True))
    if joined is not None and _is_plain(joined, len(columns[0]), len(columns)):
        return joined
    return _encode_each(columns)


def _joined(rows: Iterable[Iterable[Any]]) -> bytes | None:
    """The rows without any escaping; None when one of them holds NULL or UNCHANGED."""
    try:
        lines = list(map(b"\t".join, rows))
    except TypeError:
        return None
    lines.append(b"")
    return b"\n".join(lines)


def _is_plain(text: bytes, rows: int, columns: int) -> bool:
    return b"\\" not in text and b"\r" not in text and text.count(b"\t") == rows * (columns - 1) and text.count(b"\n") == rows


def _encode_each(columns: Iterable[Sequence[Value]]) -> bytes:
    text = _joined(zip(*map(_encode_column, columns), strict=True))
    assert text is not None
    return text


def _encode_column(column: Sequence[Value]) -> Sequence[bytes]:
    present = [value for value in column if isinstance(value, bytes)]
    together = b"".join(present)
    if any(special in together for special in (b"\\", b"\t", b"\n", b"\r")):
        return [_escape(value) if isinstance(value, bytes) else _NULL for value in column]
    if len(present) == len(column):
        return present
    return [value if isinstance(value, bytes) else _NULL for value in column]


def _escape(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
