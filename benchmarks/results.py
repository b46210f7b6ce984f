"""What was measured, read from the files that ``benchmarks.run`` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from benchmarks.measurement import Run, Scenario
from benchmarks.processes import Usage
from benchmarks.scenarios import SCENARIOS


@dataclass(frozen=True, slots=True)
class Measured:
    """One scenario, with its runs and the document they come from. ``before`` are earlier runs to compare with, or none."""

    scenario: Scenario
    runs: list[Run]
    document: dict[str, Any]
    before: list[Run] = field(default_factory=list)


def load(files: Sequence[Path], before: Sequence[Path] = ()) -> list[Measured]:
    """In the order of the scenarios. Of a scenario that is in several files the last one counts."""
    earlier = {each.scenario.name: each.runs for each in load(before)} if before else {}
    found: dict[str, Measured] = {}
    for path in files:
        document = orjson.loads(path.read_bytes())
        runs = [_run(each) for each in document["runs"]]
        for name in {run.scenario for run in runs}:
            of_scenario = [run for run in runs if run.scenario == name]
            found[name] = Measured(SCENARIOS[name], of_scenario, document, earlier.get(name, []))
    return [found[name] for name in SCENARIOS if name in found]


def _run(each: dict[str, Any]) -> Run:
    usage = {part: Usage(**costs) for part, costs in each["usage"].items()}
    return Run(**{**each, "usage": usage})
