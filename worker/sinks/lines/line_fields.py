"""A line's fields, read back by whoever sends it on.

Rows hold what PostgreSQL takes for a number or a document, and not every reader of JSON takes that: half a character, a number
above all that a machine counts with, a document that is nested deep. What is wanted of a line stands beside such a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

_ROWS = 2
"""So many levels of objects say what a line is about: its own fields, and those of a row or a key."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}:,]')


def line_fields(line: bytes) -> dict[str, Any]:
    """By name. A value that cannot be read is its text."""
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
    """Name and value of each member of an object."""
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
