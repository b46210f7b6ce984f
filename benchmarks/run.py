"""``python -m benchmarks.run``: measures scenarios one after the other, on servers of their own.

The exit code is 0 when every run could be done and left source and target equal; a missed goal is shown and fails nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import orjson

from benchmarks.data import DifferenceError
from benchmarks.measurement import Options, Run
from benchmarks.report import document, show
from benchmarks.scenarios import SCENARIOS

BUSY_LOAD = 0.7
"""Load average from which somebody else may be using the machine; the part "elsewhere" of the costs says whether it mattered."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure pgsluice, and PostgreSQL beside it.")
    listed = "; ".join(f"{scenario.name}: {scenario.title}" for scenario in SCENARIOS.values())
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"all but the long ones when none is named. {listed}")
    parser.add_argument(
        "--rows",
        type=int,
        default=0,
        help="changes of the backlogs, rows of the copy and of the large transaction (default: their own)",
    )
    parser.add_argument("--repeat", type=int, default=1, help="how often the contestants take turns")
    parser.add_argument(
        "--commits-per-s",
        type=_rates,
        default=(),
        metavar="N,N,…",
        help="of the scenarios with a steady load, one after the other (default: their own)",
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="measured time of the scenarios that take their time (each)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"unknown scenario {unknown[0]!r}: choose from {', '.join(SCENARIOS)}")
    return arguments


def _rates(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def main() -> int:
    arguments = parse_arguments()
    options = Options(arguments.rows, arguments.repeat, arguments.commits_per_s, arguments.seconds)
    everything = [name for name, scenario in SCENARIOS.items() if not scenario.is_long]
    scenarios = [SCENARIOS[name] for name in arguments.scenarios or everything]
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        say(f"the load average is {load:.2f}: if something else is using this machine, figures will suffer")
    runs: list[Run] = []
    try:
        for scenario in scenarios:
            say(f"{scenario.name}: {scenario.title}")
            for run in scenario.measure(options):
                say(f"  {run.contestant}: " + ", ".join(f"{name} {value:,.2f}" for name, value in run.figures.items()))
                runs.append(run)
            if arguments.json is not None:
                write(arguments.json, runs)
    except DifferenceError as error:
        say(f"FAILED: {error}")
        return 1
    show(runs, scenarios)
    return 0


def write(path: Path, runs: list[Run]) -> None:
    """After each scenario, so that one that fails takes nothing with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(document(runs), option=orjson.OPT_INDENT_2))


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
