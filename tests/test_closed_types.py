"""Whoever adds a member to an enum or a union is told of every place that has to know it, by the type checker."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.misses import no_misses
from tests.source_code import PRODUCT, calls, nodes, reasons, relative, sources

A_SINGLE_KIND = "a single kind"
"""A comment ``# a single kind: reason`` says why a module asks for one member of a union and need not know the others."""


def union_members(node: ast.expr) -> list[str]:
    """The names in ``A | B | None``; none when the expression is anything else."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return union_members(left)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Name(id=name)):
            return [*union_members(left), name]
        case ast.Name(id=name):
            return [name]
        case _:
            return []


def our_classes() -> list[ast.ClassDef]:
    return [node for path in sources(*PRODUCT) for node in nodes(path, ast.ClassDef)]


@cache
def our_enums() -> frozenset[str]:
    return frozenset(each.name for each in our_classes() if any(ast.unparse(base).endswith("Enum") for base in each.bases))


@cache
def members_of_unions() -> frozenset[str]:
    """Our classes that are members of a union with a name (``Part = TableChanges | Truncation``) or of a field's."""
    every = sources(*PRODUCT)
    named = [node.value for path in every for node in nodes(path, ast.Assign) if isinstance(node.value, ast.BinOp)]
    fields = [node.annotation for path in every for node in nodes(path, ast.AnnAssign) if isinstance(node.target, ast.Name)]
    ours = {each.name for each in our_classes()} - our_enums()
    unions = [union_members(expression) for expression in (*named, *fields)]
    return frozenset(name for union in unions if len(union) > 1 for name in union if name in ours)


def named_types(pattern: ast.pattern) -> set[str]:
    """The classes and enums that a pattern names."""
    named = {ast.unparse(node.cls) for node in ast.walk(pattern) if isinstance(node, ast.MatchClass)}
    values = [node.value for node in ast.walk(pattern) if isinstance(node, ast.MatchValue)]
    return named | {ast.unparse(value.value) for value in values if isinstance(value, ast.Attribute)}


def ends_in_assert_never(statement: ast.Match) -> bool:
    return ast.unparse(statement.cases[-1].body[-1]).startswith("assert_never(")


def test_every_match_over_a_closed_type_ends_in_assert_never() -> None:
    matches = [(path, node) for path in sources(*PRODUCT) for node in nodes(path, ast.Match)]
    closed = our_enums() | members_of_unions()
    over_closed = [(path, node) for path, node in matches if any(named_types(case.pattern) & closed for case in node.cases)]
    assert over_closed
    open_ended = (f"{relative(path)}:{node.lineno}" for path, node in over_closed if not ends_in_assert_never(node))
    no_misses(open_ended, "a match over a closed type: end it in 'case unreachable: assert_never(unreachable)'")


def places_that_ask(path: Path) -> list[str]:
    """Each ``isinstance`` with members of a closed union that is no assertion."""
    asserted = {id(call) for node in nodes(path, ast.Assert) for call in ast.walk(node)}
    found = []
    for call in calls(path, "isinstance"):
        names = {name.id for name in ast.walk(call.args[1]) if isinstance(name, ast.Name)}
        if id(call) not in asserted and names & members_of_unions():
            found.append(f"{relative(path)}:{call.lineno}: {ast.unparse(call)}")
    return found


def test_no_branch_takes_what_is_left_of_a_closed_union_for_granted() -> None:
    """``isinstance`` with one member does not tell the type checker what to do with a new one."""
    asking = {path: places for path in sources(*PRODUCT) if (places := places_that_ask(path))}
    assert asking
    no_misses(
        (place for path, places in asking.items() if not reasons(path, A_SINGLE_KIND) for place in places),
        "asks for one member of a closed union: match over all of them and end in assert_never,"
        f" or say in a comment '# {A_SINGLE_KIND}: reason' why the others are no concern of it",
    )
    needless = (relative(path) for path in sources(*PRODUCT) if path not in asking and reasons(path, A_SINGLE_KIND))
    no_misses(needless, f"asks for no member of a closed union any more: take out the comment '# {A_SINGLE_KIND}'")
