"""PostgreSQL's text of an array (manual: "Array Input and Output Syntax"): its elements, however deep they are nested."""

from __future__ import annotations

import re

_BOUNDS = re.compile(rb"(?:\[[+-]?\d+(?::[+-]?\d+)?\])+=")
_TOKEN = re.compile(rb'[{},]|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+)', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def array_elements(text: bytes) -> list[bytes | None]:
    """None is a NULL. Raises ValueError when the text is not an array's."""
    bounds = _BOUNDS.match(text)
    position = bounds.end() if bounds else 0
    if text[position : position + 1] != b"{" or not text.endswith(b"}"):
        raise ValueError("is not an array")
    elements: list[bytes | None] = []
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError("is not an array")
        position = token.end()
        quoted, bare = token.groups()
        if quoted is not None:
            elements.append(_ESCAPE.sub(rb"\1", quoted))
        elif bare is not None:
            elements.append(None if bare == b"NULL" else _ESCAPE.sub(rb"\1", bare))
    return elements
