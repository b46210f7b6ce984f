"""The examples of docs/how-to/rules.md do what stands below them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pgsluice.rules.ruleset import RuleSet
from pgsluice.shared.wire.table import Value
from pgsluice.testing.changes_builder import insert, table
from tests.misses import no_misses
from tests.rules.applied import load, seen
from tests.source_code import nodes, sources

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "rules.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```(?:\n\n```\n(.*?)```)?", PAGE.read_text(), re.DOTALL)

USERS = table(
    "users",
    "id bigint",
    *("name text", "email text", "card text", "phone text", "age integer", "balance numeric", "created_at timestamptz"),
    *("state public.state", "tags text[]"),
)
PASSING = {
    "id": "1",
    "name": "Alice",
    "age": "18",
    "balance": "100",
    "created_at": "2025-01-01 00:00:00+00",
    "state": "active",
    "tags": "{vip}",
}
"""A row that every example keeps; each line of an example changes some columns of it."""


def row(changed: dict[str, str]) -> tuple[Value, ...]:
    texts = [(PASSING | changed).get(column.name, "NULL") for column in USERS.columns]
    return tuple(None if text == "NULL" else text.encode() for text in texts)


def check(ruleset: RuleSet, line: str) -> None:
    cells = re.split(r" {2,}", line)
    if "=" in cells[0]:
        given, (expected,) = dict(cell.split("=", 1) for cell in cells[:-1]), cells[-1:]
    else:
        given, expected = {cells[0]: cells[1]}, cells[2]
    after = seen(ruleset, insert(USERS, *row(given)))
    if expected in ("kept", "dropped"):
        assert bool(after) is (expected == "kept"), line
    else:
        place = [column.name for column in USERS.columns].index(cells[0])
        assert after[0].new is not None
        assert after[0].new[place] == row({cells[0]: expected})[place], line


HAS_A_PAGE_OF_ITS_OWN = {"OwnTransformation"}
"""Whose files ``tests/test_wheel.py`` runs."""


def kinds_of_rules() -> set[str]:
    """The classes that have what a filter's condition has, or a transform's function of values."""
    classes = [node for path in sources("rules") for node in nodes(path, ast.ClassDef)]
    methods = {
        each.name: {node.name for node in each.body if isinstance(node, ast.FunctionDef)}
        for each in classes
        if "Protocol" not in map(ast.unparse, each.bases)
    }
    return {name for name, own in methods.items() if own >= {"column_names", "bind"} or own >= {"check_column", "apply"}}


def test_every_kind_of_rule_has_an_example_with_results() -> None:
    rules = [rule for text, results in EXAMPLES if results for entry in load(text).entries for rule in entry.rules]
    shown = set(re.findall(r"(\w+)\(", repr(rules)))
    no_misses(
        kinds_of_rules() - shown - HAS_A_PAGE_OF_ITS_OWN,
        "no example of it in docs/how-to/rules.md with its results below: add one",
    )


@pytest.mark.parametrize(("rules_text", "results"), EXAMPLES)
def test_an_example_does_what_stands_below_it(rules_text: str, results: str) -> None:
    """The first example stands alone: it shows what a file looks like."""
    assert results or rules_text == EXAMPLES[0][0], "say below it, in another block, what becomes of which value"
    ruleset = load(rules_text)
    assert ruleset.check([USERS]) == []
    for line in results.splitlines():
        check(ruleset, line)
