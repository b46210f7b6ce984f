"""What repeated runs come to: medians and their range, alike for the terminal and for the page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.measurement import Goal, Run, Scenario
from benchmarks.processes import WORKER_PARTS, Usage


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


PARTS_OF_PIPELINE = (
    "source postgres",
    "replicator",
    "replicator JVM",
    "replicator tasks",
    "nats",
    *WORKER_PARTS,
    "target postgres",
)
"""What a change passes. The benchmark itself, and what else the machine did, are beside it."""

TOGETHER = "together"
COMPARED_PARTS = (*PARTS_OF_PIPELINE, TOGETHER)


def costs(repetitions: Sequence[Run]) -> dict[str, Usage]:
    """The medians of each part of one contestant, and of the CPU of all that a change passes, together."""
    found: dict[str, list[Usage]] = {}
    for run in repetitions:
        for part, usage in run.usage.items():
            found.setdefault(part, []).append(usage)
        if run.usage:
            cpu_s = sum(run.usage[part].cpu_s for part in PARTS_OF_PIPELINE if part in run.usage)
            found.setdefault(TOGETHER, []).append(Usage(cpu_s, 0, 0))
    return {part: _median(usages) for part, usages in found.items()}


def per_change_us(usage: Usage, changes: int) -> float:
    """CPU microseconds."""
    return 1e6 * usage.cpu_s / changes


def shown_costs(usage: Usage, changes: int) -> tuple[str, str, str, str]:
    """CPU seconds, microseconds for each change where there are any, and megabytes of the largest process and of all."""
    each = f"{per_change_us(usage, changes):.2f}" if changes else ""
    return f"{usage.cpu_s:.2f}", each, f"{usage.largest_bytes / 1e6:,.0f}", f"{usage.together_bytes / 1e6:,.0f}"


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


def compared(repetitions: Sequence[Run]) -> dict[str, float]:
    """What is worth comparing of one contestant, as medians: its figures, and CPU µs a change by part."""
    if not repetitions:
        return {}
    found = {name: spread.median for name, spread in figures(repetitions).items()}
    changes = repetitions[0].changes
    parts = costs(repetitions) if changes else {}
    return found | {f"{part} µs": per_change_us(usage, changes) for part, usage in parts.items() if part in COMPARED_PARTS}


_COUNTS = ("rows_per_s", "changes_per_s", "commits_per_s")


def shown(name: str, value: float) -> str:
    """``value`` of the figure ``name``, in the digits that mean something."""
    if name.endswith(("ratio", "_s", "_s_per_min", "mb_per_s", "mb_per_h", " µs")) and not name.endswith(_COUNTS):
        return f"{value:,.2f}"
    return f"{value:,.0f}"


def shown_goal(goal: Goal) -> str:
    return f"{'≥' if goal.at_least else '≤'} {shown(goal.figure, goal.limit)}"
