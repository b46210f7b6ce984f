"""Limit on the growth of a value by a statement, relative to its row. Pure.

The limit is the worst case by the statement alone. So a call whose result would grow with the value's own length, like
``replace(v, 'a', v)``, is refused, and the factors of nested functions multiply. ``sql_engine`` checks the real size of
a row against a closer limit when it evaluates the row.
"""

from __future__ import annotations

from pgsluice.replicator.pipelines.steps.sql_rules import SqlNode, SqlRefusedError

MOST_TIMES = 4096
"""``&``, ``<``, ``>`` and both quotes written as HTML's entities come to 2400."""

_TIMES = {
    "base64": 2,
    "hex": 2,
    "decode": 3,
    "initcap": 3,
    "lcase": 3,
    "lower": 3,
    "make_valid_utf8": 3,
    "ucase": 3,
    "upper": 3,
    "url_encode": 3,
    "encode": 4,
    "mask": 4,
    "translate": 4,
}
"""Bytes that one may become."""
_JOINING = ("concat", "concat_ws", "overlay", "Concat", "Overlay")
_REPLACING = ("replace", "regexp_replace")
_LOOKS_AROUND = ("(?=", "(?<=")
"""Look-around, with which a group may match more than the whole match does."""


def check_growth(root: SqlNode) -> None:
    """Checks a statement that is allowed otherwise. Raises SqlRefusedError."""
    _of_plan(root)


def _of_plan(plan: SqlNode) -> int:
    """Returns the largest size of a value, as a multiple of the row that is read."""
    times = max((_of_plan(child) for child in plan.children if child.is_plan), default=1)
    expressions = [child for child in plan.children if not child.is_plan]
    made = [_checked(expression, times) for expression in expressions]
    return max(made, default=times) if plan.kind == "Project" else times


def _checked(expression: SqlNode, times: int) -> int:
    made = _of(expression, times)
    if made > MOST_TIMES:
        raise SqlRefusedError(f"may make a value more than {MOST_TIMES} times as large as its row{expression.place}")
    return made


def _of(node: SqlNode, times: int) -> int:
    """Returns the factor of a node; ``times`` is a column's. A literal counts as a column: the statement's length
    limits it."""
    given = [_of(child, times) for child in node.children]
    name = node.name[0].lower() if node.kind == "UnresolvedFunction" else node.kind
    if name in _REPLACING:
        return _checked_replacing(name, node, given)
    if name in _JOINING:
        return sum(given) + given[0] * len(given) * (name == "concat_ws") if given else 1
    if node.kind in ("UnresolvedAttribute", "UnresolvedStar", "UnresolvedStarExceptOrReplace"):
        return times
    return max(given, default=1) * _TIMES.get(name, 1)


def _checked_replacing(name: str, node: SqlNode, given: list[int]) -> int:
    """Returns the bound of a replacement with the arguments ``(text, what, by)``."""
    if len(node.children) < 3:
        return max(given, default=1)
    text, what, by = node.children[:3]
    if text.kind == "Literal":
        return given[0] * max(1, len(text.written.encode())) * given[2]
    if by.kind != "Literal":
        raise SqlRefusedError(f"has {name} insert a text that is not a literal, so its result has no bound{node.place}")
    if name == "replace":
        return given[0] * max(1, len(by.written.encode()))
    if "$" in by.written and (what.kind != "Literal" or any(each in what.written for each in _LOOKS_AROUND)):
        raise SqlRefusedError(f"has {name} insert groups of a pattern with lookaround, so its result has no bound{node.place}")
    return given[0] * (1 + 2 * len(by.written.encode()))
