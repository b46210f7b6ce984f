"""Reads COPY text back, for comparison."""

from __future__ import annotations

_UNESCAPED = {b"\\t": b"\t", b"\\n": b"\n", b"\\r": b"\r", b"\\\\": b"\\"}


def read_rows(text: bytes) -> list[tuple[bytes | None, ...]]:
    return [tuple(_value(field) for field in line.split(b"\t")) for line in text.split(b"\n")[:-1]]


def _value(field: bytes) -> bytes | None:
    if field == b"\\N":
        return None
    value, rest = b"", field
    while rest:
        taken = _UNESCAPED.get(rest[:2], rest[:1])
        value, rest = value + taken, rest[2 if rest[:2] in _UNESCAPED else 1 :]
    return value
