"""What repeated runs come to: medians and their range, alike for the terminal and for the page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.measurement import Goal, Run, Scenario
from benchmarks.processes import Usage


class Spread(NamedTuple):
    """Of one figure over the repetitions."""

    median: float
    least: float
    most: float


class Judgement(NamedTuple):
    """A goal, and whether the median meets it."""

    goal: Goal
    is_met: bool


def by_contestant(runs: Iterable[Run]) -> list[list[Run]]:
    """The repetitions of each contestant of each scenario, in the order of their first."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.contestant), []).append(run)
    return list(groups.values())


def figures(repetitions: Sequence[Run]) -> dict[str, Spread]:
    """Of one contestant."""
    values = {name: [run.figures[name] for run in repetitions] for name in repetitions[0].figures}
    return {name: Spread(statistics.median(each), min(each), max(each)) for name, each in values.items()}


def costs(repetitions: Sequence[Run]) -> dict[str, Usage]:
    """The medians of each part of one contestant."""
    found: dict[str, list[Usage]] = {}
    for run in repetitions:
        for part, usage in run.usage.items():
            found.setdefault(part, []).append(usage)
    return {part: _median(usages) for part, usages in found.items()}


def _median(usages: Sequence[Usage]) -> Usage:
    return Usage(
        cpu_s=statistics.median(usage.cpu_s for usage in usages),
        largest_bytes=round(statistics.median(usage.largest_bytes for usage in usages)),
        together_bytes=round(statistics.median(usage.together_bytes for usage in usages)),
    )


def judge(scenario: Scenario, contestant: str, figure: str, value: float) -> Judgement | None:
    """None where there is no goal."""
    for goal in scenario.goals:
        if (goal.contestant, goal.figure) == (contestant, figure):
            return Judgement(goal, goal.is_met_by(value))
    return None


def shown(name: str, value: float) -> str:
    """``value`` of the figure ``name``, in the digits that mean something."""
    if name.endswith(("ratio", "_s", "mb_per_s")) and not name.endswith(("rows_per_s", "changes_per_s", "commits_per_s")):
        return f"{value:,.2f}"
    return f"{value:,.0f}"


def shown_goal(goal: Goal) -> str:
    return f"{'≥' if goal.at_least else '≤'} {shown(goal.figure, goal.limit)}"
