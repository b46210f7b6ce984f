"""Finds texts that the program prints, logs, raises or sends: the string literals of its source that read like prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.source_code import nodes

_SQL = re.compile(
    r"\s*(?:SELECT|WITH|CREATE|INSERT|UPDATE|DELETE|ALTER|DROP|GRANT|COPY|BEGIN|SET|TRUNCATE|VALUES|LOCK|ON CONFLICT|MERGE|DO"
    r"|EXPLAIN|FROM|WHERE|LEFT JOIN|JOIN|AND|OR|ORDER BY|CASE|coalesce)\b"
)
_PROSE = re.compile(r"[a-z]{2,} [a-z]{2,}")
_WORD = re.compile(r"[A-Za-z]{2,}")
FEWEST_WORDS = 3

_NAMED = re.compile(r"(?<!\w)'[^'\n]{1,80}'|--[\w-]+")
"""Commands, options and values as texts quote them: code, like backticks in a document."""


def prose_of_source(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of each literal, with code in place of values and quoted names; no docstrings, and no SQL."""
    apart = set(_parts(path))
    literals: list[ast.JoinedStr | ast.Constant] = [*nodes(path, ast.JoinedStr), *nodes(path, ast.Constant)]
    for literal in literals:
        if literal in apart or (not isinstance(literal, ast.JoinedStr) and not isinstance(literal.value, str)):
            continue
        text = _NAMED.sub("`name`", _text(literal))
        if not _SQL.match(text) and _PROSE.search(text) and len(_WORD.findall(text)) >= FEWEST_WORDS:
            yield literal.lineno, text


def _parts(path: Path) -> Iterator[ast.AST]:
    """Returns docstrings, and parts of f-strings: the whole f-string contains them."""
    for expression in nodes(path, ast.Expr):
        yield expression.value
    for whole in nodes(path, ast.JoinedStr):
        for value in whole.values:
            yield value
            if isinstance(value, ast.FormattedValue) and value.format_spec is not None:
                yield from ast.walk(value.format_spec)


def _text(literal: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(literal, ast.Constant):
        return str(literal.value)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "`value`" for part in literal.values)
