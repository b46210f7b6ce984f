"""``scenarios.md`` says what each of 95 failures is shown by: all are there, and so is every test that it names."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

COUNTS = {"A": 17, "B": 15, "C": 11, "D": 14, "E": 14, "F": 24}
NOT_APPLICABLE = {"A16", "D8", "E10", "F24"}

_ROW = re.compile(r"\| ([A-F][0-9]+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|")
_TEST = re.compile(r"`(tests/[^`:]+\.py)::(test_\w+)`")


class Scenario(NamedTuple):
    id: str
    name: str
    verdict: str
    by: str


SCENARIOS = [
    Scenario(*(cell.strip() for cell in match.groups()))
    for match in map(_ROW.fullmatch, (REPOSITORY / "tests" / "scenarios.md").read_text().splitlines())
    if match
]


@cache
def defined_tests(path: str) -> frozenset[str]:
    """The tests that a file defines, those of classes that others inherit among them."""
    tree = ast.parse((REPOSITORY / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_scenario_is_there_once_and_in_order() -> None:
    wanted = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert len(wanted) == 95
    assert [scenario.id for scenario in SCENARIOS] == wanted


def test_only_what_does_not_exist_here_is_not_applicable() -> None:
    assert {scenario.id for scenario in SCENARIOS if scenario.verdict == "n.a."} == NOT_APPLICABLE


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_a_scenario_is_shown_by_tests_that_exist_or_says_why_not(scenario: Scenario) -> None:
    named = _TEST.findall(scenario.by)
    match scenario.verdict:
        case "tested":
            assert named
            assert _TEST.sub("", scenario.by).strip(", ") == "", "something else than tests is named"
            assert [f"{path}::{name}" for path, name in named if name not in defined_tests(path)] == []
        case "n.a.":
            assert scenario.by.endswith(".")
        case _:
            raise AssertionError(f"{scenario.verdict!r} is no verdict")
