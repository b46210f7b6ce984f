"""``scenarios.md`` says what each failure is shown by: none is missing, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.misses import no_misses

REPOSITORY = Path(__file__).resolve().parents[1]

AT_LEAST = 95
"""As many failures other systems had, or test, when this list was made: there may be more, and none is taken away."""

_ROW = re.compile(r"\| ([A-F][0-9]+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|")
_TEST = re.compile(r"`(test(?:s|ing)/[^`:]+\.py)::(test_\w+)`")


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
    if not (REPOSITORY / path).is_file():
        return frozenset()
    tree = ast.parse((REPOSITORY / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_scenario_is_there_once_and_in_order() -> None:
    """Each letter's are numbered from 1 on without a gap."""
    numbers: dict[str, int] = {}
    for scenario in SCENARIOS:
        letter = scenario.id[0]
        numbers[letter] = numbers.get(letter, 0) + 1
        assert scenario.id == f"{letter}{numbers[letter]}", f"{letter}{numbers[letter]} is missing, or not in its place"
    assert list(numbers) == sorted(numbers)
    assert len(SCENARIOS) >= AT_LEAST, "a scenario was taken away: bring it back, or say in its place why it is n.a."


def test_a_scenario_is_shown_by_tests_that_exist_or_says_why_not() -> None:
    problems = (f"{scenario.id}: {problem}" for scenario in SCENARIOS for problem in problems_of(scenario))
    no_misses(problems, "correct its line in tests/scenarios.md")


def problems_of(scenario: Scenario) -> Iterator[str]:
    named = _TEST.findall(scenario.by)
    match scenario.verdict:
        case "tested":
            if not named or _TEST.sub("", scenario.by).strip(", "):
                yield "name tests as `file.py::test`, separated by commas, and nothing else"
            yield from (f"{path}::{name} is not there" for path, name in named if name not in defined_tests(path))
        case "n.a.":
            if not scenario.by.endswith("."):
                yield "say in a sentence why there is no such thing here"
        case _:
            yield f"{scenario.verdict!r} is no verdict"
