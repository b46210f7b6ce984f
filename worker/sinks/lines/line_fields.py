"""A line's fields, read back by the code that sends it.

Rows hold PostgreSQL's numbers and documents, and not every reader of JSON accepts them: half a character, a number
beyond machine numbers, a deeply nested document. The wanted fields of a line are next to such a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

_ROWS = 2
"""Levels of objects that contain a line's own fields, and the fields of a row or a key."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}:,]')


def line_fields(line: bytes) -> dict[str, Any]:
    """Returns the fields by name. A value that cannot be read is its text."""
    fields: dict[str, Any] = _read(line, _ROWS)
    return fields


def _read(text: bytes, levels: int) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if levels and text.startswith(b"{"):
            return {name: _read(value, levels - 1) for name, value in _members(text)}
        return text.decode()


def _members(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields name and value of each member of an object."""
    level = begin = 0
    name = b""
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if level == 1:
            match mark:
                case b":":
                    begin = token.end()
                case b"," | b"}":
                    yield orjson.loads(name), text[begin : token.start()]
                    begin = 0
                case _ if not begin:
                    name = mark
        level += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
